// Words and numbers for people.

const thin = '\u202f';

function count(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, thin);
}

function size(n) {
  if (n < 1024) return n + thin + 'B';
  let unit = -1;
  while (n >= 1024 && unit < 4) { n /= 1024; unit++; }
  return (n < 10 ? n.toFixed(1) : Math.round(n)) + thin + 'KMGTP'[unit] + 'iB';
}

function span(seconds) {
  if (seconds === 0) return '0' + thin + 's';
  if (seconds < 0.001) return '<' + thin + '1' + thin + 'ms';
  if (seconds < 0.0995) return (seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0) + thin + 'ms';
  if (seconds < 1) return Math.round(seconds * 1000) + thin + 'ms';
  if (seconds < 10) return seconds.toFixed(1) + thin + 's';
  if (seconds < 120) return Math.round(seconds) + thin + 's';
  if (seconds < 7200) return Math.round(seconds / 60) + thin + 'min';
  if (seconds < 172800) return Math.round(seconds / 3600) + thin + 'h';
  return Math.round(seconds / 86400) + ' days';
}

function perSecond(v) {
  return (v > 0 && v < 10 ? v.toFixed(1) : count(v)) + '/s';
}

function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
}

function ago(from, now) {
  return span(Math.max(0, (Date.parse(now) - Date.parse(from)) / 1000)) + ' ago';
}

// Everything that comes from the relay gets onto the page through these two:
// as text and as attributes, never as markup.
function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

function byId(id) { return document.getElementById(id); }

// show puts content into an element, unless it is there already: focus, selection
// and what a screen reader reads stay where they are.
function show(id, ...content) {
  const holder = byId(id), fresh = holder.cloneNode(false);
  fresh.append(...content.flat());
  if (!holder.isEqualNode(fresh)) holder.replaceChildren(...fresh.childNodes);
}

const marks = {
  ok: 'M6 12.5l4 4 8-9', rest: 'M9 7v10M15 7v10', unknown: 'M9 9a3 3 0 1 1 4.2 2.8c-.8.4-1.2 1-1.2 2M12 17.6v.1',
  warn: 'M12 6v8M12 17.8v.1', bad: 'M7 7l10 10M17 7L7 17',
};
