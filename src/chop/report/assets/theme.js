// Light, dark, or as the system says; remembered where the browser allows it.

const THEMES = ["system", "light", "dark"];
const STORED = "mase-report-theme";

function remember(theme) {
  try { localStorage.setItem(STORED, theme); } catch { /* a file may have no storage */ }
}

function recall() {
  try { return localStorage.getItem(STORED); } catch { return null; }
}

function setTheme(button, theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = { system: "◐ System", light: "☀ Light", dark: "☾ Dark" }[theme];
  button.setAttribute("aria-label", `Colours: ${theme}. Change`);
  button.dataset.theme = theme;
}

/** Let a button go through the themes. */
export function startTheme(button) {
  const stored = recall();
  setTheme(button, THEMES.includes(stored) ? stored : "system");
  button.addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(button.dataset.theme) + 1) % THEMES.length];
    setTheme(button, theme);
    remember(theme);
  });
}
