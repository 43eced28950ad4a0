/* A menu of the site's versions, where the site has several: versions.json lies beside their folders. */
document.addEventListener("DOMContentLoaded", async () => {
  const menu = document.querySelector(".versions");
  const root = new URL(document.documentElement.dataset.content_root, location);
  if (!menu || !root.protocol.startsWith("http")) return;
  const answer = await fetch(new URL("../versions.json", root)).catch(() => null);
  if (!answer?.ok) return;
  const here = root.pathname.split("/").at(-2);
  const select = menu.querySelector("select");
  for (const name of await answer.json()) select.add(new Option(name, name, false, name === here));
  menu.hidden = false;
  select.addEventListener("change", async () => {
    const there = new URL(`../${select.value}/`, root);
    const page = new URL(location.href.slice(root.href.length), there);
    const known = await fetch(page, { method: "HEAD" }).catch(() => null);
    location = known?.ok ? page : there;
  });
});
