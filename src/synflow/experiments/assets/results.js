"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const axes = {kept: "weights", flops: "operations of a forward pass", train_seconds: "seconds of training"};
const form = document.getElementById("filters"), plot = document.getElementById("plot");
const box = {left: 60, right: 780, top: 15, bottom: 410};

// Text keeps its size on a narrow screen: the drawing is made as wide as the page, but not wider than 800.
function fit() {
  const width = Math.round(Math.min(800, Math.max(300, plot.clientWidth || 800))), height = width < 600 ? 380 : 460;
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  box.right = width - 20;
  box.bottom = height - 50;
}

function select(name, said, options) {
  const label = document.createElement("label"), menu = document.createElement("select");
  menu.name = name;
  for (const [value, text] of options) menu.add(new Option(text, value));
  label.append(said + " ", menu);
  form.append(label);
  menu.addEventListener("change", draw);
}

function element(name, attributes, parent = plot) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function chosen(list) {
  const wanted = Object.fromEntries(new FormData(form));
  return list.filter(one => Object.keys(data.filters).every(
    name => !wanted[name] || String(one[name]) === wanted[name]));
}

const short = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});

function number(value) {
  return value == null ? "?" : value >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

function tell(run) {
  document.getElementById("about").textContent =
    `${run.run}\n${run.top1.toFixed(2)} ± ${run.sure} %   weights ${number(run.kept)}   parameters ${number(run.parameters)}` +
    `   operations ${number(run.flops)}   ${number(run.train_seconds)} s   epochs ${run.epochs}` +
    `   images per class ${run.train_per_class ?? "all"}   seed ${run.seed}` +
    (run.schedule === "exponential" ? "" : `   schedule ${run.schedule}`) +
    (run.ablation === "none" ? "" : `   ablation ${run.ablation}`) + `   commit ${run.commit ?? "?"}\n${run.command}`;
}

function frame(low, high, bottom, top, x, y, key) {
  const steps = high - low < 2 ? [1, 2, 5] : [1], wide = high - low > 12 ? 3 : 1;
  for (let power = Math.floor(low); power <= high; power += wide) for (const step of steps) {
    const place = power + Math.log10(step);
    if (place < low || place > high) continue;
    element("line", {x1: x(place), x2: x(place), y1: box.top, y2: box.bottom, stroke: "var(--line)", "stroke-width": 0.5});
    element("text", {x: x(place), y: box.bottom + 18, "text-anchor": "middle"}).textContent = short.format(10 ** place);
  }
  const every = top - bottom > 30 ? 10 : top - bottom > 12 ? 5 : 2;
  for (let tick = Math.ceil(bottom / every) * every; tick <= top; tick += every) {
    element("line", {x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), stroke: "var(--line)", "stroke-width": 0.5});
    element("text", {x: box.left - 8, y: y(tick) + 4, "text-anchor": "end"}).textContent = tick;
  }
  element("text", {x: (box.left + box.right) / 2, y: box.bottom + 40, "text-anchor": "middle"}).textContent = axes[key];
  element("text", {x: 15, y: 210, transform: "rotate(-90 15 210)", "text-anchor": "middle"}).textContent = "top-1 accuracy (%)";
}

function draw() {
  plot.replaceChildren();
  fit();
  const key = form.elements.axis.value, found = chosen(data.runs);
  const runs = found.filter(run => run[key] > 0), ghosts = key === "kept" ? chosen(data.ghosts) : [];
  const without = found.length - runs.length;
  document.getElementById("count").textContent = `${runs.length} of ${data.runs.length} runs, ${ghosts.length} published means` +
    (without ? `; ${without} chosen run${without > 1 ? "s have" : " has"} no ${axes[key]} on record` : "");
  const all = [...runs, ...ghosts];
  if (!all.length) return;
  const logs = all.map(one => Math.log10(one[key])), tops = all.map(one => one.top1);
  const spare = Math.max(0.15, 0.5 - (Math.max(...logs) - Math.min(...logs)) / 2);
  const low = Math.min(...logs) - spare, high = Math.max(...logs) + spare;
  const bottom = Math.max(0, Math.min(...tops) - 4), top = Math.min(100, Math.max(...tops) + 4);
  const x = power => box.left + (power - low) / (high - low) * (box.right - box.left);
  const y = percent => box.bottom - (percent - bottom) / (top - bottom) * (box.bottom - box.top);
  frame(low, high, bottom, top, x, y, key);
  for (const one of ghosts)
    element("circle", {class: "ghost", cx: x(Math.log10(one[key])), cy: y(one.top1), r: 4, fill: "none", opacity: 0.55,
      stroke: data.colours[one.method] ?? "currentColor"});
  for (const run of runs) {
    const colour = data.colours[run.method] ?? "currentColor", at = x(Math.log10(run[key]));
    element("line", {x1: at, x2: at, y1: y(run.top1 - run.sure), y2: y(run.top1 + run.sure), stroke: colour});
    const dot = element("circle", {class: "run", cx: at, cy: y(run.top1), r: 5, fill: colour, "fill-opacity": 0.75, tabindex: 0});
    element("title", {}, dot).textContent = `${run.method}, compression ${number(run.compression)}: ${run.top1.toFixed(2)} %\n${run.command}`;
    for (const event of ["mouseenter", "focus", "click"]) dot.addEventListener(event, () => tell(run));
  }
}

select("axis", "axis", Object.entries(axes));
for (const [name, said] of Object.entries(data.filters)) {
  const values = [...new Set(data.runs.map(run => run[name]))].sort((a, b) => a > b ? 1 : -1);
  if (values.length > 1)
    select(name, said, [["", "any"], ...values.map(value => [value, typeof value === "number" ? number(value) : value ?? "all"])]);
}
addEventListener("resize", draw);
draw();
