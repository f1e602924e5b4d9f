// page.js — shows /state.json (src/page/README.md) every two seconds. Text from outside stays text.
'use strict';
const by = id => document.getElementById(id);
const clock = s => {
  s = Math.round(s);
  const two = n => String(n).padStart(2, '0');
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}`
                  : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
};
const known = x => typeof x === 'number' && isFinite(x);
const percent = (x, digits = 0) => known(x) ? (100 * x).toFixed(digits) + ' %' : '–';
const bytes = x => {
  if (!known(x)) return '–';
  const power = x < 1e3 ? 0 : Math.min(4, Math.floor(Math.log10(x) / 3));
  return (x / 1000 ** power).toPrecision(3) + ' ' + ['B', 'kB', 'MB', 'GB', 'TB'][power];
};
const digits = (x, n) => known(x) ? Number(x.toPrecision(n)).toString() : '–';
function make(name, text, kind) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

let next = 0, train = [], val = [], events = [], charts;

// Curves by step: a column per point of training, and per point of validation if there is one.
const curves = [
  {title: 'Loss', train: 1, val: 1, show: x => digits(x, 4)},
  {title: 'Accuracy', train: 2, val: 2, show: x => percent(x, 1)},
  {title: 'Learning rate', train: 3, show: x => digits(x, 4)},
  {title: 'Images per second', train: 4, show: x => digits(x, 4)},
];
function rows(curve) {
  const all = train.map(point => [point[0], point[curve.train], null]);
  if (curve.val) for (const point of val) all.push([point[0], null, point[curve.val]]);
  return all.filter(row => known(row[0])).sort((a, b) => a[0] - b[0]).map(row => curve.val ? row : row.slice(0, 2));
}
function draw() {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  if (!charts) {
    charts = [];
    if (typeof Dygraph === 'undefined') {
      by('charts').textContent = 'There are no curves, because this trainer was built without dygraphs: install ' +
          'libjs-dygraphs and build it again.';
      return;
    }
    // Its legend would need styles that the Content-Security-Policy forbids.
    Dygraph.PLUGINS = Dygraph.PLUGINS.filter(plugin => plugin !== Dygraph.Plugins.Legend);
    for (const curve of curves) {
      const box = make('div', undefined, 'chart'), head = make('h3', curve.title), values = make('span');
      const place = make('div', undefined, 'curves');
      head.append(values), box.append(head, place), by('charts').append(box);
      const graph = new Dygraph(place, [[0, ...(curve.val ? [null, null] : [null])]], {
        labels: curve.val ? ['step', 'training', 'validation'] : ['step', 'training'],
        colors: [dark ? '#6fa5ea' : '#3f7fd0', '#e0902f'], gridLineColor: dark ? '#333b46' : '#e4e7ec',
        axisLineColor: dark ? '#333b46' : '#dfe3e8', strokeWidth: 1.6, connectSeparatedPoints: true,
        series: {validation: {drawPoints: true, pointSize: 3}}, rightGap: 8, animatedZooms: false,
        axes: {y: {axisLabelWidth: 58, axisLabelFormatter: curve.show}},
        highlightCallback: (event, step, points) => {
          values.textContent = `step ${step}  ` + points.map(p => `${p.name} ${curve.show(p.yval)}`).join('  ');
        },
        unhighlightCallback: () => { values.textContent = last(curve); },
      });
      charts.push({curve, graph, values});
    }
  }
  for (const {curve, graph, values} of charts) {
    const file = rows(curve);
    if (file.length) graph.updateOptions({file});
    values.textContent = last(curve);
  }
}
const last = curve => {
  const of = (points, column) => points.length ? curve.show(points[points.length - 1][column]) : '';
  return of(train, curve.train) + (curve.val && val.length ? ` · validation ${of(val, curve.val)}` : '');
};

function showNumbers(s) {
  const late = s.state === 'training' && s.last_step_time > 0 ? s.now - s.last_step_time : 0;
  const numbers = [
    [s.steps > 0 ? 'step of ' + s.steps : 'step', known(s.step) ? s.step : '–'],
    [s.epochs > 0 ? 'epoch of ' + s.epochs : 'epoch', known(s.epoch) ? s.epoch + 1 : '–'],
    ['time left', s.eta > 0 ? clock(s.eta) : '–'],
    ['images/s', digits(s.images_per_second, 4)],
    ['loss', digits(s.loss, 4)],
    ['accuracy', percent(s.top1, 1)],
    ['validation', percent(s.val_top1, 1)],
    ['best validation', percent(s.best_top1, 1)],
    ['checkpoint', known(s.checkpoint_time) ? clock(Math.max(0, s.now - s.checkpoint_time)) + ' ago' : '–'],
  ];
  if (late > 30) numbers.push(['since the last step', clock(late)]);
  by('numbers').replaceChildren(...numbers.map(([name, value]) => {
    const box = make('div');
    box.append(make('dt', name), make('dd', value));
    return box;
  }));
}

function showRanks(ranks) {
  const titles = ['rank', 'address', 'share', 'its time', 'processor', 'memory', 'sends'];
  const line = make('tr');
  line.append(...titles.map(title => make('th', title)));
  by('titles').replaceChildren(line);
  by('ranks').replaceChildren(...ranks.map(rank => {
    const row = make('tr'), parts = make('td', undefined, 'parts'), bar = make('div');
    const data = rank.data_wait || 0, net = rank.net_wait || 0;
    const compute = known(rank.compute) ? rank.compute : Math.max(0, 1 - data - net);
    if (known(rank.data_wait))
      for (const [kind, part] of [['data', data], ['compute', compute], ['net', net]]) {
        const piece = make('i', undefined, kind);
        piece.style.width = 100 * Math.min(1, part) + '%';
        bar.append(piece);
      }
    bar.title = `images ${percent(data)}, computing ${percent(compute)}, network ${percent(net)}; ` +
      'the rest is validation, checkpoints and new rings';
    parts.append(bar);
    const speed = x => known(x) && rank.seconds > 0 ? bytes(x / rank.seconds) + '/s' : '–';
    row.append(make('td', rank.rank), make('td', rank.address || 'this machine'), make('td', digits(rank.share, 3)), parts,
               make('td', percent(rank.cpu)), make('td', bytes(rank.memory)), make('td', speed(rank.sent)));
    titles.forEach((title, i) => { row.children[i].dataset.title = title; });  // for narrow screens
    return row;
  }));
}

function showEvents() {
  by('events').replaceChildren(...events.slice(-100).reverse().map(([time, step, text]) => {
    const item = make('li');
    item.append(make('time', known(time) ? new Date(1000 * time).toLocaleTimeString() : ''),
                make('b', known(step) ? 'step ' + step : ''), make('span', text));
    return item;
  }));
}

function show(s) {
  if (s.reset) train = [], val = [], events = [];
  train.push(...s.train), val.push(...s.val), events.push(...s.events);
  next = s.next;
  by('model').textContent = s.model || 'Convoy';
  by('data').textContent = s.model ? 'on ' + (s.data || 'generated images') : '';
  document.title = `${s.state} · ${s.model || 'Convoy'}`;
  by('state').textContent = s.state, by('state').className = 'chip ' + s.state;
  by('done').style.width = known(s.step) && s.steps > 0 ? Math.min(100, 100 * s.step / s.steps) + '%' : '0';
  by('limit').textContent = s.limit;
  showNumbers(s), showRanks(s.ranks), showEvents(), draw();
}

async function look() {
  try {
    const answer = await fetch('state.json?after=' + next);
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    by('trouble').hidden = true;
  } catch (error) {
    by('trouble').textContent = 'The trainer does not answer; this is its last state. ' +
        'To see a finished run: trainer page RUN';
    by('trouble').hidden = false;
  }
  setTimeout(look, 2000);
}
look();
