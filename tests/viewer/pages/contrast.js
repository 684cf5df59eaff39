/** Text without enough contrast, also where axe-core gives up: in drawings, over gradients, single letters; the first, as lines.
 *
 * Enough is that of WCAG 2.2 AA: 4.5 : 1, or 3 : 1 for large text, against all backgrounds composed. Text in a drawing
 * is compared with the rectangle drawn before it in the same group, where there is one. */
() => {
  const found = new Set(), said = (what, one) => found.add(`${what}: ${one.outerHTML.slice(0, 110)}`);
  const parse = (text) => {
    const numbers = (text.match(/-?[\d.]+(e-?\d+)?/g) ?? []).map(Number), scale = text.startsWith("color(") ? 255 : 1;
    return numbers.length < 3 ? [0, 0, 0, 0] : [...numbers.slice(0, 3).map((part) => part * scale), numbers[3] ?? 1];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((part, at) => part * a + below[at] * (1 - a));
  const light = (rgb) => rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const visible = (one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && one.getClientRects().length > 0;
  const faded = (one) => { for (; one; one = one.parentElement) if (getComputedStyle(one).opacity < 1) return true; return false; };
  const behind = (one) => {
    const layers = [];
    if (one instanceof SVGElement) {
      const before = one.previousElementSibling;
      if (before?.tagName === "rect") { const style = getComputedStyle(before); const fill = parse(style.fill); layers.push([...fill.slice(0, 3), fill[3] * style.fillOpacity]); }
    }
    for (let at = one; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const one = node.parentElement;
    if (!node.data.trim() || !one || !visible(one) || one.closest(".unseen, .skip, script, style, option, datalist") || faded(one)) continue;
    const style = getComputedStyle(one), ground = behind(one);
    const ink = over(parse(one instanceof SVGElement ? style.fill : style.color), ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a), size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < needed - 0.005) said(`contrast ${ratio.toFixed(2)} of ${ink.map(Math.round)} on ${ground.map(Math.round)}`, one);
  }
  return [...found].slice(0, 12);
}
