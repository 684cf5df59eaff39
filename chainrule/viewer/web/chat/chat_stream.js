// @ts-check
/** An answer that streams as lines of JSON: {"piece": what is new}, and at the end {"done": …} or {"error": line}. */

/** How it ended. @typedef {{ finish?: string, dropped?: number, context?: number | null, error?: string }} End */

/** @param {string} path @param {object} body @param {AbortSignal} signal @param {(piece: any) => void} onpiece @returns {Promise<End>} */
export async function stream(path, body, signal, onpiece) {
  /** @type {End} */
  let end = { error: "The answer broke off. Is the server still running?" };
  const take = (/** @type {string} */ line) => {
    const value = JSON.parse(line);
    if (value.piece !== undefined) onpiece(value.piece);
    else end = value.done ?? { error: value.error };
  };
  try {
    const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const decoder = new TextDecoder();
    let held = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      held += decoder.decode(part.value, { stream: true });
      const lines = held.split("\n");
      held = lines.pop() ?? "";
      for (const line of lines) take(line);
    }
    if (held) take(held);
  } catch (error) {
    end = signal.aborted ? { finish: "stopped" } : { error: `The server does not answer (${error}). Is it still running?` };
  }
  return end;
}
