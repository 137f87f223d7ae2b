"use strict";
(function () {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const button = document.getElementById("theme");
  const narrow = matchMedia("(max-width: 40rem)");
  const touch = matchMedia("(pointer: coarse)").matches;
  // Plotly's own buttons cannot be inside of an image, which is what a figure is to a screen reader.
  const config = { displayModeBar: false };

  function theme(dark) {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light colours" : "Dark colours";
  }

  // A colour is given by the name of a property of the page.
  function coloured(value, style) {
    if (typeof value === "string") {
      const found = /^var\((--[a-z]+)\)$/.exec(value);
      return found ? style.getPropertyValue(found[1]).trim() : value;
    }
    if (Array.isArray(value)) {
      return value.length && typeof value[0] === "number" && typeof value[1] !== "string" ? value : value.map((each) => coloured(each, style));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each, style)]));
    }
    return value;
  }

  const percent = (share) => (share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0) + " %";

  function differing(meta, layer, column) {
    const parted = meta.disagreed[layer][column];
    return parted ? `, ranks differ in ${parted} ${parted === 1 ? "step" : "steps"}` : "";
  }

  // What a cell says, by the kind of the figure.
  const says = {
    states: (meta, z) => meta.states[z],
    seconds: (meta, z) => `${z < 1 ? (z * 1000).toFixed(1) + " ms" : z.toFixed(2) + " s"} of its own`,
    unused: (meta, z) => (z === 0 ? "a gradient" : `no gradient in ${percent(z)}`),
    layers: (meta, z, row, column) => {
      const parted = meta.disagreed[row][column];
      return parted ? `ranks differ in ${parted} of ${meta.widths[column]} steps` : `skipped in ${percent(z)}, by all ranks`;
    },
    choice: (meta, z, row, column) =>
      `skipped in ${meta.layers[meta.chosen][row][column]} %${differing(meta, meta.chosen, column)}`,
  };

  function hover(spec) {
    const say = says[spec.meta.kind];
    if (!say) return;
    const { rows, columns } = spec.meta;
    spec.data[0].text = spec.data[0].z.map((line, row) =>
      line.map((z, column) => (z === null ? "" : `${columns[column]}<br>${rows[row]}<br>${say(spec.meta, z, row, column)}`)));
  }

  // The share of one layer by ranks and steps: 0 to 1, and 1 more where ranks differ.
  function choose(spec, layer) {
    spec.meta.chosen = layer;
    spec.data[0].z = spec.meta.layers[layer].map((line) =>
      line.map((share, column) => (share === null ? null : spec.meta.disagreed[layer][column] ? 1.02 + share * 0.0098 : Math.min(share / 100, 0.99))));
  }

  function draw(spec) {
    const style = getComputedStyle(root);
    const { data, layout } = coloured({ data: spec.data, layout: spec.layout }, style);
    if (touch || narrow.matches) layout.dragmode = false;
    if (narrow.matches) {
      layout.height = spec.compact;
      layout.font.size = 10;
    }
    return Plotly.react(spec.id, data, layout, config);
  }

  async function drawAll() {
    for (const spec of specs) {
      await draw(spec);
      // The page can be used between two figures.
      await new Promise((go) => setTimeout(go, 0));
    }
    root.dataset.ready = "yes";
  }

  for (const spec of specs) {
    if (spec.choice !== null) {
      choose(spec, spec.choice);
      document.getElementById(spec.id + "-choice").addEventListener("change", (event) => {
        choose(spec, Number(event.target.value));
        hover(spec);
        draw(spec);
      });
    }
    hover(spec);
  }
  // The bar of links: the part that is read is marked, and its link is in sight.
  const links = [...document.querySelectorAll("nav a")];
  const parts = links.map((link) => document.getElementById(link.hash.slice(1)));
  const top = document.querySelector("nav").offsetHeight;
  let marked = null;
  // A link that was followed, until the page is scrolled: the last parts cannot reach the top of a tall window.
  let followed = null;
  function mark() {
    const room = root.scrollHeight - innerHeight;
    // The line of reading goes from the top of the window to its end, so that it crosses every part.
    const line = top + (room > 0 ? (scrollY / room) * (innerHeight - top) : 0);
    const reached = parts.filter((part) => part.getBoundingClientRect().top <= line + 1).length;
    if (followed && Math.abs(scrollY - followed.at) > 8) followed = null;
    const link = followed ? followed.link : links[Math.max(0, reached - 1)];
    if (link === marked) return;
    if (marked) marked.removeAttribute("aria-current");
    marked = link;
    link.setAttribute("aria-current", "location");
    const bar = link.closest("ul");
    bar.scrollLeft = link.offsetLeft - (bar.clientWidth - link.offsetWidth) / 2;
  }
  function follow() {
    const link = links.find((each) => each.hash === location.hash);
    followed = link ? { link, at: scrollY } : null;
    mark();
  }
  addEventListener("hashchange", follow);
  document.querySelector("nav").addEventListener("click", () => setTimeout(follow));
  let asked = false;
  addEventListener("scroll", () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; mark(); });
  }, { passive: true });
  mark();

  // A figure is as wide as its card, whatever has changed that.
  const cards = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.data && target.clientWidth) Plotly.Plots.resize(target);
  });
  for (const spec of specs) cards.observe(document.getElementById(spec.id));
  narrow.addEventListener("change", drawAll);

  const prefers = matchMedia("(prefers-color-scheme: dark)");
  theme(prefers.matches);
  prefers.addEventListener("change", (event) => { theme(event.matches); drawAll(); });
  button.addEventListener("click", () => { theme(root.dataset.theme !== "dark"); drawAll(); });
  drawAll();
})();
