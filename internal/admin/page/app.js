// What the relay says, every two seconds.

const runbook = 'https://github.com/walrelay/walrelay/blob/main/docs/runbook.md#';
const headlines = {
  delivering: 'Events are delivered', idle: 'Idle: everything is in place, and nothing waits', standby: 'Standing by: another relay delivers',
  starting: 'Starting', stopping: 'Stopping', stopped: 'Stopped', waiting: 'Waiting', stalled: 'Standing still', halted: 'Halted: a decision is needed',
};
const levels = { delivering: 'ok', idle: 'ok', standby: 'rest', starting: 'rest', stopping: 'rest', stopped: 'rest', waiting: 'warn', stalled: 'bad', halted: 'bad' };

let before = null, rate = null, points = [], every = 10, answered = 0;

const charts = {
  rate: new Chart('rate', {
    title: 'Events stored a second', unit: (v) => (v >= 1e6 ? +(v / 1e6).toFixed(1) + 'M' : v >= 10000 ? count(v / 1000) + 'k' : v > 0 && v < 10 ? String(+v.toFixed(1)) : count(v)), least: 1,
    lines: [{ key: 'rate', name: 'events', look: 'first', area: true }], empty: 'no points yet: one comes every ten seconds', none: 'not known',
  }),
  latency: new Chart('latency', {
    title: 'From commit to stored', unit: span, least: 0.01,
    lines: [{ key: 'median', name: 'half of all', look: 'first' }, { key: 'p99', name: '99 of 100', look: 'second' }], empty: 'nothing was stored in this hour', none: 'nothing stored',
  }),
};

function facts(id, list) {
  show(id, list.filter(Boolean).map(([term, value]) => el('div', null, el('dt', null, term), el('dd', null, value))));
}

function command(text) {
  const copy = navigator.clipboard && el('button', { type: 'button', 'data-copy': text, 'aria-label': 'Copy the command ' + text }, 'Copy');
  return el('div', { class: 'command' }, el('code', null, text), copy);
}

function worst(s) {
  const order = ['bad', 'warn'];
  return order.find((l) => (s.advice || []).some((a) => a.level === l)) || levels[s.phase];
}

function verdict(s) {
  let level = levels[s.phase] || 'unknown';
  const others = (s.advice || []).filter((a) => a.level === 'bad' || a.level === 'warn').length;
  let headline = headlines[s.phase] || s.phase, detail = s.ready ? '' : s.not_ready.replace(/^\w+: /, '');
  if (s.ready && others) {
    level = worst(s) === 'bad' ? 'bad' : 'warn';
    headline += others === 1 ? ', and one thing wants attention' : `, and ${others} things want attention`;
  }
  if (s.phase === 'waiting') headline = 'Waiting: events stay safe in PostgreSQL';
  if (s.phase === 'standby') detail = s.reason || '';
  byId('verdict').dataset.level = level;
  byId('verdict').querySelector('path').setAttribute('d', marks[level === 'rest' ? 'rest' : level]);
  if (byId('headline').textContent !== headline) byId('headline').textContent = headline;
  byId('detail').textContent = detail;
  document.title = `${s.phase} – ${s.source} – walrelay`;
}

function advice(s) {
  byId('todo').hidden = !(s.advice || []).length;
  // What stands in the verdict need not be said twice.
  show('advice', (s.advice || []).map((a) => el('li', { class: 'card', 'data-level': a.level },
    el('h3', null, a.title), a.text && a.text !== s.not_ready && el('p', null, a.text), a.command && command(a.command),
    a.runbook && el('a', { class: 'more', href: runbook + a.runbook, rel: 'noreferrer' }, 'What it means and what to look at'))));
}

function way(s) {
  const width = byId('way').clientWidth - 34;
  show('way', picture(s.parts, s.phase === 'delivering', width));
}

function figures(s) {
  const newest = points.at(-1), tile = (term, value, level) => el('div', { class: 'card', 'data-level': level || null }, el('dt', null, term), el('dd', null, value));
  const last = [...points].reverse().find((p) => p.p99 !== null), unknown = '–';
  const held = s.streams.reduce((n, st) => n + st.in_flight + st.queued, 0);
  const lag = s.lag_seconds, behind = s.behind_seconds;
  show('figures',
    tile('oldest event not stored', lag === undefined ? unknown : lag === 0 ? 'none' : span(lag), lag > 60 ? 'bad' : lag > 10 ? 'warn' : ''),
    tile('events a second', rate !== null ? perSecond(rate) : newest ? perSecond(newest.rate) : unknown),
    tile('commit to stored, 99 of 100', last ? span(last.p99) : unknown),
    tile('in flight and waiting', count(held)),
    tile('behind PostgreSQL', behind === undefined ? unknown : behind === 0 ? 'no' : span(behind), behind > 300 ? 'bad' : ''),
    tile('WAL kept by the slot', s.slot_state ? size(s.slot_state.retained_bytes) : unknown));
}

function slot(s) {
  const t = s.slot_state;
  facts('slot', [
    ['slot', s.slot + (t ? (t.active ? ', held' : ', not held') : '')], ['publication', s.publication],
    t && ['WAL', `${t.wal_status}, ${size(t.retained_bytes)} kept`],
    t && ['room', t.safe_bytes === undefined ? 'no limit is set (max_slot_wal_keep_size)' : size(t.safe_bytes) + ' until the slot is lost'],
    s.lag_bytes !== undefined && ['not confirmed', size(s.lag_bytes)],
    s.received_lsn && ['received LSN', el('code', null, s.received_lsn)], s.confirmed_lsn && ['confirmed LSN', el('code', null, s.confirmed_lsn)],
    t && t.catalog_xmin_age !== undefined && ['catalog_xmin', count(t.catalog_xmin_age) + ' transactions old'],
    t ? ['looked at', ago(t.looked_at, s.at)] : ['state', 'not known now'],
  ]);
}

function counters(s) {
  const n = s.counters, r = n.retries, retries = r.timeouts + r.disconnects + r.wrong_sequence + r.no_responders + r.denied + r.environment;
  facts('counters', [
    ['events stored', `${count(n.stored)}, ${size(n.stored_bytes)}`], ['there already', count(n.passed)], ['dead-lettered', count(n.refused)],
    n.skipped > 0 && ['skipped', count(n.skipped)], ['transactions', count(n.transactions)], ['failed attempts', count(retries)],
    ['sessions', count(n.sessions)], n.healed > 0 && ['healed', count(n.healed)], n.late > 0 && ['marked late', count(n.late)],
    s.nats.server && ['NATS', s.nats.connected ? s.nats.server : 'not connected'],
    s.retention && ['old rows deleted', count(s.retention.deleted)],
    s.last_error && ['last error', `${s.last_error} (${ago(s.last_error_at, s.at)})`],
  ]);
}

function stream(st, s) {
  const level = st.flowing ? (s.phase === 'delivering' ? 'ok' : 'rest') : s.state === 'relaying' || st.reason ? 'bad' : 'rest';
  const f = st.fill, shares = f ? [f.max_messages && f.messages / f.max_messages, f.max_bytes && f.bytes / f.max_bytes].filter(Boolean) : [];
  const share = shares.length ? Math.min(1, Math.max(...shares)) : null;
  const bar = share !== null && el('progress', { class: 'fill', max: 1, value: share.toFixed(3), 'aria-label': 'how full it is' });
  return el('article', { class: 'card stream', 'data-level': level },
    el('header', null, el('h3', null, st.name), el('span', { class: 'state' }, st.state)),
    el('p', null, `${st.mechanism}${st.last_sequence ? `, last sequence ${count(st.last_sequence)}` : ''}, ${count(st.in_flight)} in flight, ${count(st.queued)} waiting`),
    f && el('p', null, `${count(f.messages)} messages, ${size(f.bytes)}${share === null ? ', no limit' : `, ${Math.round(100 * share)} % of its limit`}`),
    st.reason && el('p', null, st.reason), st.limit && el('p', null, st.limit), bar);
}

function open(s) {
  const list = [];
  const d = s.dead_letters, g = s.gaps;
  if (!d) list.push(el('div', null, el('p', null, 'Dead letters: not known now')));
  else if (!d.open) list.push(el('div', null, el('p', null, 'No dead letter is open.')));
  else for (const [reason, n] of Object.entries(d.by_reason)) {
    list.push(el('div', null, el('h3', null, `${count(n)} dead ${n === 1 ? 'letter' : 'letters'}: ${reason}`),
      command(`walrelay deadletters list --reason ${/^\w+$/.test(reason) ? reason : JSON.stringify(reason)}` + sourceFlag(s))));
  }
  if (!g) list.push(el('div', null, el('p', null, 'Gaps: not known now')));
  else if (!g.open.length) list.push(el('div', null, el('p', null, 'No gap is open.' + (g.newest ? ` The last one, ${g.newest.id} (${g.newest.kind}), was ${g.newest.state} ${ago(g.newest.ended_at, s.at)}.` : ''))));
  else for (const gap of g.open) {
    list.push(el('div', null, el('h3', null, `Gap ${gap.id} (${gap.kind})${gap.stream ? ' of stream ' + gap.stream : ''}`),
      el('p', null, `${gap.events ? count(gap.events) + ' events' : 'events not counted'}, found ${ago(gap.found_at, s.at)}`), command('walrelay replay --missing --dry-run' + sourceFlag(s))));
  }
  for (const j of s.jobs || []) {
    list.push(el('div', null, el('h3', null, `Job ${j.id}: ${j.kind}, ${j.state}`), el('p', null, `${count(j.looked)} looked at, ${count(j.sent)} sent, ${count(j.stored)} stored, ${count(j.refused)} refused`)));
  }
  show('open', list);
}

function sourceFlag(s) { return s.source === 'walrelay' ? '' : ' --source ' + s.source; }

function render(s) {
  if (before) {
    const seconds = (Date.parse(s.at) - Date.parse(before.at)) / 1000, stored = s.counters.stored - before.counters.stored;
    rate = seconds > 0 && stored >= 0 ? stored / seconds : null;
  }
  before = s;
  byId('source').textContent = `source ${s.source}`;
  byId('updated').textContent = `${s.phase}${s.phase_since ? ' since ' + clock(s.phase_since) : ''}; updated ${clock(s.at)}`;
  verdict(s);
  advice(s);
  way(s);
  figures(s);
  slot(s);
  counters(s);
  show('streams', s.streams.map((st) => stream(st, s)));
  open(s);
}

async function ask(path) {
  const response = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(5000) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function past() {
  const h = await ask('history' + (points.length ? `?after=${points.at(-1).at}` : ''));
  every = h.every_seconds;
  points = points.concat(h.points).slice(-370);
  if (h.points.length && points.length > 1 && points.at(-1).at < points[0].at) points = h.points; // another process, another clock
}

// lost says that nobody answers; what is shown is old from then on.
function lost(error) {
  document.body.dataset.stale = '';
  byId('verdict').dataset.level = 'unknown';
  byId('verdict').querySelector('path').setAttribute('d', marks.unknown);
  byId('headline').textContent = 'No answer from the relay';
  byId('detail').textContent = (answered ? `What is below was true at ${clock(answered)}. ` : '') + String(error && error.message || error);
  document.title = 'no answer – walrelay';
}

async function tick() {
  try {
    const status = await ask('status');
    const now = Date.parse(status.at);
    if (!points.length || now - points.at(-1).at >= every * 1000) await past();
    delete document.body.dataset.stale;
    answered = Date.now();
    render(status);
    for (const chart of Object.values(charts)) {
      chart.every = every;
      chart.update(points.filter((p) => now - p.at < hour), now);
    }
    document.documentElement.dataset.rendered = status.phase;
  } catch (error) {
    lost(error);
  } finally {
    setTimeout(tick, document.hidden ? 10000 : 2000);
  }
}

document.addEventListener('click', async (e) => {
  const text = e.target.dataset && e.target.dataset.copy;
  if (!text) return;
  try {
    await navigator.clipboard.writeText(text);
    e.target.textContent = 'Copied';
  } catch {
    e.target.textContent = 'Select it';
  }
});
addEventListener('resize', () => { if (before) way(before); });
tick();
