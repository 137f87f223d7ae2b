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

  // What a cell says, by the kind of the figure.
  const says = {
    seconds: (meta, z) => `${z < 1 ? (z * 1000).toFixed(1) + " ms" : z.toFixed(2) + " s"} of its own`,
    unused: (meta, z) => (z === 0 ? "a gradient" : `no gradient in ${percent(z)}`),
    layers: (meta, z, row, column) => {
      if (meta.states) return meta.states[z];
      const parted = meta.disagreed[Math.floor(row / meta.height)][column];
      return `skipped in ${percent(z < 2 ? z : z - 2)}${parted ? `, ranks differ in ${parted} ${parted === 1 ? "step" : "steps"}` : ""}`;
    },
  };

  function hover(spec) {
    const say = says[spec.meta.kind];
    if (!say) return;
    const { rows, columns } = spec.meta;
    spec.data[0].text = spec.data[0].z.map((line, row) =>
      line.map((z, column) => (z === null ? "" : `${columns[column]}<br>${rows[row]}<br>${say(spec.meta, z, row, column)}`)));
  }

  function draw(spec) {
    const style = getComputedStyle(root);
    const { data, layout } = coloured({ data: spec.data, layout: spec.layout }, style);
    if (touch || narrow.matches) layout.dragmode = false;
    if (narrow.matches) {
      layout.height = Math.max(110, 0.67 * layout.height);
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

  specs.forEach(hover);
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
