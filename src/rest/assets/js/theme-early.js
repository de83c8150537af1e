// Runs before the first paint, so that a chosen theme does not flash. A classic script on purpose: modules run late.
(() => {
  try {
    const theme = localStorage.getItem('countersign.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch {
    // Storage can be switched off; then the system's preference stands.
  }
})();
