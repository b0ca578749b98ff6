// The element with the focus, and the contrast of its ring with what lies behind it; of fields, all
// whose border is hardly seen.
(fields) => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const over = (color, below) => {
    canvas.fillStyle = `rgb(${below})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = (one) => one
    ? over(getComputedStyle(one).backgroundColor, behind(one.parentElement)) : [255, 255, 255];
  const light = (color) => color.map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const contrast = (color, back) => {
    const [low, high] = [light(back), light(over(color, back))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const html = (one) => one.outerHTML.slice(0, 120);
  if (fields) return [...document.querySelectorAll(fields)].filter(one => one.checkVisibility()
    && contrast(getComputedStyle(one).borderTopColor, behind(one.parentElement)) < 3).map(html);
  const one = document.activeElement, style = getComputedStyle(one);
  if (one === document.body) return null;
  const isDrawn = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const back = behind(one.parentElement);
  return {html: html(one), contrast: isDrawn ? contrast(style.outlineColor, back) : 0};
}
