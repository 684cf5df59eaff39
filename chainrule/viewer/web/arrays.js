// @ts-check
/** Arrays in JSON: what `pack_array` of arrays.py wrote, as typed arrays again. */

/** @typedef {{ dtype: string, shape: number[], data: string }} Packed */
/** @typedef {Float32Array | Int32Array | Uint8Array | Uint16Array} Values */
/** @typedef {{ shape: number[], values: Values }} Numbers */

const TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, uint16: Uint16Array };

/** @param {Packed} packed @returns {Numbers} */
export function unpack({ dtype, shape, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return { shape, values: new TYPES[/** @type {keyof typeof TYPES} */ (dtype)](bytes.buffer) };
}
