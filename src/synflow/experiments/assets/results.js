"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const axes = {kept: "weights", flops: "operations of a forward pass", train_seconds: "seconds of training"};
const form = document.getElementById("filters"), plot = document.getElementById("plot");
const box = {left: 60, right: 780, top: 15, bottom: 410};

function select(name, options) {
  const label = document.createElement("label"), menu = document.createElement("select");
  menu.name = name;
  for (const [value, text] of options) menu.add(new Option(text, value));
  label.append(name + " ", menu);
  form.append(label);
  menu.addEventListener("change", draw);
}

function element(name, attributes, parent = plot) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function chosen(list, key) {
  const wanted = Object.fromEntries(new FormData(form));
  return list.filter(one => one[key] > 0 && data.filters.every(
    name => !wanted[name] || String(one[name]) === wanted[name]));
}

function number(value) {
  return value == null ? "?" : value >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

function tell(run) {
  document.getElementById("about").textContent =
    `${run.run}\n${run.top1.toFixed(2)} ± ${run.sure} %   weights ${number(run.kept)}   parameters ${number(run.parameters)}` +
    `   operations ${number(run.flops)}   ${number(run.train_seconds)} s   epochs ${run.epochs}` +
    `   images per class ${run.train_per_class ?? "all"}   seed ${run.seed}   commit ${run.commit ?? "?"}\n${run.command}`;
}

function frame(low, high, bottom, top, x, y, key) {
  for (let power = Math.ceil(low); power <= high; power++) {
    element("line", {x1: x(power), x2: x(power), y1: box.top, y2: box.bottom, stroke: "var(--line)", "stroke-width": 0.5});
    element("text", {x: x(power), y: box.bottom + 18, "text-anchor": "middle"}).textContent = number(10 ** power);
  }
  for (let tick = Math.ceil(bottom / 10) * 10; tick <= top; tick += 10) {
    element("line", {x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), stroke: "var(--line)", "stroke-width": 0.5});
    element("text", {x: box.left - 8, y: y(tick) + 4, "text-anchor": "end"}).textContent = tick;
  }
  element("text", {x: 420, y: box.bottom + 40, "text-anchor": "middle"}).textContent = axes[key];
  element("text", {x: 15, y: 210, transform: "rotate(-90 15 210)", "text-anchor": "middle"}).textContent = "top-1 accuracy (%)";
}

function draw() {
  plot.replaceChildren();
  const key = form.elements.axis.value;
  const runs = chosen(data.runs, key), ghosts = key === "kept" ? chosen(data.ghosts, key) : [];
  document.getElementById("count").textContent = `${runs.length} of ${data.runs.length} runs, ${ghosts.length} published means`;
  const all = [...runs, ...ghosts];
  if (!all.length) return;
  const logs = all.map(one => Math.log10(one[key])), tops = all.map(one => one.top1);
  const low = Math.min(...logs) - 0.15, high = Math.max(...logs) + 0.15;
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
    const dot = element("circle", {class: "run", cx: at, cy: y(run.top1), r: 5, fill: colour, tabindex: 0});
    element("title", {}, dot).textContent = `${run.method}, compression ${number(run.compression)}: ${run.top1.toFixed(2)} %\n${run.command}`;
    for (const event of ["mouseenter", "focus", "click"]) dot.addEventListener(event, () => tell(run));
  }
}

select("axis", Object.entries(axes));
for (const name of data.filters) {
  const values = [...new Set(data.runs.map(run => run[name]))].sort((a, b) => a > b ? 1 : -1);
  select(name, [["", "all"], ...values.map(value => [value, typeof value === "number" ? number(value) : value])]);
}
draw();
