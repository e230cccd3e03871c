// Before Gradio's scripts. Its loader counts its seconds anew with every frame, also when it has long
// gone (seen with 6.31): an idle page would be drawn 60 times a second, a tenth of a processor that
// decoding needs. That count goes on once a second; every other request for a frame is as it was.
(() => {
  const countsSeconds = /performance\.now\(\)\s*-[^/]+\/\s*1(e3|000)\b/;
  const next = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (callback) => {
    if (countsSeconds.test(callback)) return setTimeout(callback, 1000, performance.now());
    return next(callback);
  };
})();
