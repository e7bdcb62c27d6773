// Sets the chosen colour scheme before the first paint, so that no page flashes in the other one.
// A plain script: modules run after the page was drawn.
{
  const chosen = localStorage.getItem("omlx.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
