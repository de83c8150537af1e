// Runs before the first paint, so that the chosen theme does not flash. It is a classic script because modules run later.
(() => {
  try {
    const theme = localStorage.getItem('countersign.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage, the preference of the system applies.
  }
})();
