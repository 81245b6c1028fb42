"use strict";
// The only arithmetic of the page: bytes of a cause = fixed + each * users of one copy, and between
// two stops of the length a form for each figure, which was read off plans and checked with others.
// All numbers are the planner's; the integers are below 2^53, where doubles are exact.

function shareBytes(position, users) {
  const ofACopy = Math.ceil(users / position.copies);
  return position.shares.map(([cause, fixed, each]) => [cause, fixed + each * ofACopy]);
}

// What is drawn, in order: [cause, bytes]. What the card, or the pool, does not have is one
// piece at the end, cause -1.
function segments(position, users, causes) {
  const shares = shareBytes(position, users).filter(([, bytes]) => bytes > 0);
  const isLeft = ([cause]) => causes[cause].name === "not_requested";
  const asked = shares.filter((share) => !isLeft(share));
  const left = shares.filter(isLeft);
  const sum = (list) => list.reduce((total, [, bytes]) => total + bytes, 0);
  let room = position.card_bytes - sum(left);
  const drawn = [];
  for (const [cause, bytes] of asked) {
    const inside = Math.min(bytes, room);
    room -= inside;
    if (inside) drawn.push([cause, inside]);
  }
  const beyond = sum(asked) - sum(drawn);
  return [...drawn, ...left, ...(beyond ? [[-1, beyond]] : [])];
}

function verdict(position, users, length, device) {
  const beyond = users > 1 && users > position.high_users;
  if (!position.users) {
    const refused = beyond && position.status === "may_not_fit";
    const says = refused ? position.says.replace(/^MAY NOT FIT/, "DOES NOT FIT") : position.says;
    return { status: refused ? "does_not_fit" : position.status, says };
  }
  if (users > position.users) {
    const of = `${grouped(position.users)} of ${grouped(users)} users of ${grouped(length)} tokens`;
    const says = `${beyond ? "DOES NOT FIT" : "MAY NOT FIT"}: only ${of} on ${device}`;
    return { status: beyond ? "does_not_fit" : "may_not_fit", says: says + ofCache(position, 80 - says.length) };
  }
  if (users > 1 && users > position.low_users && position.status !== "does_not_fit") {
    const of = `${grouped(users)} users of ${grouped(length)} tokens`;
    const says = `MAY NOT FIT: ${of} on ${device}`;
    return { status: "may_not_fit", says: says + ofCache(position, 80 - says.length) };
  }
  return { status: position.status, says: position.says };
}

// The cache and its range, as a headline of so many columns has room for it.
function ofCache(position, columns) {
  if (position.low_bytes === position.high_bytes) return "";
  const best = size(position.cache_bytes), unit = best.slice(best.lastIndexOf(" "));
  const ends = [size(position.low_bytes), size(position.high_bytes)];
  const alike = ends.every((end) => end.endsWith(unit));
  const [low, high] = alike ? ends.map((end) => end.slice(0, -unit.length)) : ends;
  const ways = [`, ${best} of cache (${low} to ${high})`, `, ${best} (${low} to ${high})`, ""];
  return ways.find((words) => words.length <= Math.max(0, columns));
}

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

// As kvpipe writes bytes: 1.00 GiB, 576 B.
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes, unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  if (unit === 0) return `${grouped(value)} B`;
  let digits = Math.abs(value) < 100 ? 2 : 1;
  if (Number(Math.abs(value).toFixed(digits)) >= 1024 && unit < units.length - 1) {
    value /= 1024; unit += 1; digits = 2;
  }
  const [whole, part] = value.toFixed(digits).split(".");
  return `${grouped(whole)}.${part} ${units[unit]}`;
}

// The position of a subject at the stops with these indices (the last axis, which is the length,
// moves fastest), or at another length; null where no plan says anything of that one.
function positionAt(subject, stops, length) {
  const lengths = subject.axes[subject.axes.length - 1].stops;
  let at = 0;
  subject.axes.forEach((axis, i) => { at = at * axis.stops.length + stops[i]; });
  if (length === undefined || length === lengths[stops[stops.length - 1]]) return subject.positions[at];
  const stop = lengths.indexOf(length);
  if (stop >= 0) return subject.positions[at - stops[stops.length - 1] + stop];
  const piece = pieceAt(subject, stops, length);
  return piece ? between(piece, length) : null;
}

function pieceAt(subject, stops, length) {
  let cell = 0;
  subject.axes.slice(0, -1).forEach((axis, i) => { cell = cell * axis.stops.length + stops[i]; });
  const pieces = (subject.between || [])[cell] || [];
  return pieces.find((piece) => piece.first <= length && length <= piece.last);
}

// base + slope * length + sum of height * floor((length - r) / m)
function figureAt(form, length) {
  if (typeof form === "number") return form;
  const [base, slope, ...steps] = form;
  return steps.reduce((sum, [height, r, m]) => sum + height * Math.floor((length - r) / m), base + slope * length);
}

// A position of a length between stops. A load of n requests: all decode (steady blocks each) but
// one, which reads its prompt (peak blocks).
function between(piece, length) {
  const [peak, steady] = [piece.peak, piece.steady].map((form) => figureAt(form, length));
  const first = Math.max(0, peak - steady), most = piece.seqs ?? Infinity;
  const running = (blocks) => Math.floor(Math.max(0, blocks - first) / Math.max(1, steady));
  const memory = running(piece.usable_blocks), users = Math.min(memory, most);
  const low = piece.low_blocks === null ? users : Math.min(users, Math.max(1, running(piece.low_blocks)));
  const high = piece.high_blocks === null ? users : Math.min(running(piece.high_blocks), most);
  const ofAll = (requests) => piece.copies * requests;
  const said = piece.head.replace("{length}", `${grouped(length)} token${length === 1 ? "" : "s"}`);
  const cause = ([number, ...forms]) => [number, ...forms.map((form) => figureAt(form, length))];
  return {
    ...piece,
    says: said + ofCache(piece, 80 - said.length),
    shares: piece.shares.map(cause),
    users: ofAll(users),
    memory_users: ofAll(memory),
    low_users: piece.sure ? ofAll(low) : 0,
    high_users: ofAll(high),
    peak_users: ofAll(Math.min(Math.floor(piece.usable_blocks / peak), most)),
    steady_users: ofAll(Math.min(decoding(piece, length, steady), most)),
    request_bytes: figureAt(piece.request_bytes, length),
  };
}

// Requests that decode at this length together: the last to get there passes steps that hold more,
// while the others hold theirs.
function decoding(piece, length, steady) {
  const left = piece.usable_blocks - mostHeld(piece, length);
  if (left < 0) return 0;
  return Math.min(Math.floor(piece.usable_blocks / Math.max(1, steady)), 1 + Math.floor(left / Math.max(1, steady)));
}

// Blocks of a decoding request of up to so many tokens that holds most. They rise at the form's own
// steps alone, and after a period by the same number.
function mostHeld(piece, length) {
  const from = Math.max(piece.first, length - piece.period);
  let most = Math.max(piece.held_before, figureAt(piece.steady, from), figureAt(piece.steady, length));
  if (typeof piece.steady === "number") return most;
  for (const [, r, m] of piece.steady.slice(2)) {
    for (let at = from + (((r - from) % m) + m) % m; at <= length; at += m) most = Math.max(most, figureAt(piece.steady, at));
  }
  return most;
}
