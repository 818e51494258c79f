// The controls of each sweep's charts.

// Buttons of which one is pressed.
function choiceButtons(items, label, choose) {
  const buttons = items.map((item, i) => {
    const button = html("button", { type: "button", "aria-pressed": String(!i) }, label(item));
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      choose(item);
    });
    return button;
  });
  return buttons;
}

// A button for an entry of a set.
function toggle(set, entry, children, changed) {
  set.add(entry);
  const button = html("button", { type: "button", class: "toggle", "aria-pressed": "true" }, ...children);
  button.addEventListener("click", () => {
    if (!set.delete(entry)) set.add(entry);
    button.setAttribute("aria-pressed", String(set.has(entry)));
    changed();
  });
  return button;
}

function begin(place) {
  const curves = JSON.parse(document.getElementById(`curves-${place.dataset.curves}`).textContent);
  const shown = { axis: "samples", methods: new Set(), radii: new Set() };
  const charts = curves.charts.map((spec) => new Chart(curves, spec, shown));
  const redraw = () => charts.forEach((chart) => chart.draw());
  const axis = choiceButtons(["samples", "seconds"], String, (name) => {
    shown.axis = name;
    redraw();
  });
  const methods = curves.methods.map(({ name, index }) => toggle(shown.methods, index, [swatch(index), name], redraw));
  const radii = curves.radii.map((name, i) => toggle(shown.radii, i, [swatch(null, i), name], redraw));
  const controls = html("div", { class: "controls" }, html("span", {}, "show"), ...methods);
  if (radii.length) controls.append(html("span", {}, "rho"), ...radii);
  controls.append(html("span", {}, "against"), ...axis);
  place.append(controls, html("div", { class: "charts" }, ...charts.map((chart) => chart.figure)));
  redraw();
}

document.querySelectorAll("[data-curves]").forEach(begin);
