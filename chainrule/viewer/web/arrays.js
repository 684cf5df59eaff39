// @ts-check
/** Arrays in JSON: what `pack_array` of page.py wrote, as typed arrays again. */

/** @typedef {{ dtype: string, shape: number[], digits?: number, data: string | Uint8Array<ArrayBuffer> }} Packed `data`: base64, or the bytes */
/** @typedef {Float32Array | Int32Array | Uint8Array | Uint16Array} Values */
/** @typedef {{ shape: number[], values: Values }} Numbers */

const TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, uint16: Uint16Array };

/** @param {string} dtype */
const typeOf = (dtype) => TYPES[/** @type {keyof typeof TYPES} */ (dtype)];

/** @param {Packed} packed @returns {Numbers} */
export function unpack({ dtype, shape, data }) {
  const bytes = typeof data === "string" ? Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)) : data;
  return { shape, values: new (typeOf(dtype))(bytes.buffer) };
}

/** An array of a file, where the first bytes of all numbers come first, then the second, …: number by number again.
 * @param {{ dtype: string, shape: number[], at: number }} stored @param {Uint8Array} bytes @returns {Packed} */
export function byNumber({ dtype, shape, at }, bytes) {
  const count = shape.reduce((product, size) => product * size, 1), size = typeOf(dtype).BYTES_PER_ELEMENT;
  const data = new Uint8Array(count * size);
  for (let place = 0; place < size; place++)
    for (let number = 0; number < count; number++) data[number * size + place] = bytes[at + place * count + number];
  return { dtype, shape, data };
}
