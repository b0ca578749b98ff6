// The element with the focus, and the contrast of its ring with what lies behind it.
() => {
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
  const one = document.activeElement, style = getComputedStyle(one);
  const back = behind(one.parentElement);
  if (one === document.body) return null;
  const [low, high] = [light(back), light(over(style.outlineColor, back))].sort((a, b) => a - b);
  const isDrawn = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return {html: one.outerHTML.slice(0, 120), contrast: isDrawn ? (high + 0.05) / (low + 0.05) : 0};
}
