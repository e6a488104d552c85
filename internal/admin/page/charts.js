// Lines over the last hour. A chart has the focus like a slider: the arrow keys
// move along it, and the reading stands in words above it.

const hour = 3600e3;

function nice(v) {
  const power = Math.pow(10, Math.floor(Math.log10(v)));
  return [1, 2, 5, 10].find((m) => m * power >= v) * power;
}

class Chart {
  constructor(id, options) {
    this.holder = byId(id);
    this.options = options;
    this.points = [];
    this.at = null; // of the point that is read
    this.reading = el('span', { class: 'reading', 'aria-live': 'off' });
    this.plot = el('div', { class: 'plot', tabindex: 0, role: 'slider', 'aria-label': options.title, 'aria-orientation': 'horizontal' });
    const keys = options.lines.length > 1 && options.lines.map((line) => el('span', { class: 'key' },
      svg('svg', { viewBox: '0 0 22 8', 'aria-hidden': 'true' }, svg('path', { class: line.look, d: 'M1 4H21' })), line.name));
    this.holder.append(el('figcaption', null, el('b', null, options.title), keys && el('span', null, keys), this.reading), this.plot);
    this.plot.addEventListener('pointermove', (e) => this.point(e));
    this.plot.addEventListener('pointerdown', (e) => this.point(e));
    this.plot.addEventListener('pointerleave', () => this.read(null));
    this.plot.addEventListener('blur', () => this.read(null));
    this.plot.addEventListener('keydown', (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  update(points, now) {
    this.points = points;
    this.now = now;
    this.draw();
  }

  point(e) {
    const box = this.plot.getBoundingClientRect();
    const at = this.now - hour + hour * (e.clientX - box.left - this.left) / (box.width - this.left);
    let best = -1;
    this.points.forEach((p, i) => { if (best < 0 || Math.abs(p.at - at) < Math.abs(this.points[best].at - at)) best = i; });
    this.read(best < 0 ? null : this.points[best].at);
  }

  key(e) {
    const last = this.points.length - 1;
    const here = this.at === null ? last : this.points.findIndex((p) => p.at === this.at);
    const steps = { ArrowLeft: here - 1, ArrowRight: here + 1, PageUp: here - 30, PageDown: here + 30, Home: 0, End: last };
    if (!(e.key in steps) || last < 0) return;
    e.preventDefault();
    this.read(this.points[Math.min(last, Math.max(0, steps[e.key]))].at);
  }

  read(at) {
    this.at = at;
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth, height = 176, bottom = height - 22, top = 12;
    if (!width || !this.now) return;
    const lines = this.options.lines, values = this.points.flatMap((p) => lines.map((l) => p[l.key])).filter((v) => v !== null);
    const most = nice(Math.max(this.options.least, ...values));
    this.left = 16 + 6.6 * Math.max(...[0.5, 1].map((share) => this.options.unit(most * share).length));
    const x = (at) => this.left + (width - this.left - 6) * (1 - (this.now - at) / hour);
    const y = (v) => bottom - (bottom - top) * v / most;
    const out = [];
    for (const share of [0, 0.5, 1]) {
      out.push(svg('path', { class: 'grid', d: `M${this.left} ${y(most * share)}H${width}` }));
      out.push(svg('text', { class: 'axis', x: this.left - 8, y: y(most * share) + 4, 'text-anchor': 'end' }, this.options.unit(most * share)));
    }
    for (const minutes of width < 420 ? [60, 30, 0] : [60, 40, 20, 0]) {
      const anchor = minutes === 60 ? 'start' : minutes === 0 ? 'end' : 'middle';
      out.push(svg('text', { class: 'axis', x: x(this.now - minutes * 6e4), y: height - 4, 'text-anchor': anchor }, minutes ? `−${minutes} min` : 'now'));
    }
    const step = this.every * 1000;
    for (const p of this.points) {
      if (!p.ready) out.push(svg('rect', { class: 'down', x: Math.max(this.left, x(p.at - step)), y: top, width: Math.max(1, x(p.at) - x(p.at - step)), height: bottom - top }));
    }
    for (const line of lines) {
      for (const run of this.runs(line.key, step)) {
        const d = run.map((p, i) => `${i ? 'L' : 'M'}${x(p.at).toFixed(1)} ${y(p[line.key]).toFixed(1)}`).join('');
        if (line.area && run.length > 1) out.push(svg('path', { class: 'area', d: `${d}L${x(run.at(-1).at)} ${bottom}L${x(run[0].at)} ${bottom}Z` }));
        out.push(run.length > 1 ? svg('path', { class: line.look, d }) : svg('circle', { class: `dot of-${line.look}`, cx: x(run[0].at), cy: y(run[0][line.key]), r: 2.5 }));
      }
    }
    if (!values.length) out.push(svg('text', { class: 'empty', x: (this.left + width) / 2, y: (top + bottom) / 2, 'text-anchor': 'middle' }, this.options.empty));
    const read = this.points.find((p) => p.at === this.at), shown = read || this.points.at(-1);
    if (read) {
      out.push(svg('path', { class: 'cursor', d: `M${x(read.at)} ${top}V${bottom}` }));
      lines.forEach((l) => read[l.key] !== null && out.push(svg('circle', { class: `dot of-${l.look}`, cx: x(read.at), cy: y(read[l.key]), r: 4 })));
    }
    this.plot.replaceChildren(svg('svg', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, out));
    const text = shown ? this.words(shown) : '';
    this.reading.textContent = text;
    const index = this.points.indexOf(shown);
    for (const [key, value] of Object.entries({ 'aria-valuemin': 0, 'aria-valuemax': Math.max(0, this.points.length - 1), 'aria-valuenow': Math.max(0, index), 'aria-valuetext': text || this.options.empty })) {
      this.plot.setAttribute(key, value);
    }
  }

  // runs are the stretches in which a value is known.
  runs(key, step) {
    const all = [];
    let last = null;
    for (const p of this.points) {
      if (p[key] === null) { last = null; continue; }
      if (!last || p.at - last.at > 2.5 * step) all.push([]);
      all.at(-1).push(p);
      last = p;
    }
    return all;
  }

  words(p) {
    const known = this.options.lines.filter((l) => p[l.key] !== null);
    const what = known.map((l) => (this.options.lines.length > 1 ? l.name + ' ' : '') + this.options.unit(p[l.key])).join(', ');
    return `${what || this.options.none}, ${clock(p.at)}${p.ready ? '' : ', not ready'}`;
  }
}
