"use strict";
// The only arithmetic of the page: bytes of a cause = fixed + each * users of one copy. All numbers
// are the planner's; the integers are below 2^53, where doubles are exact.

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
  if (position.users > 0 && users > position.users) {
    const of = `${grouped(position.users)} of ${grouped(users)} users of ${grouped(length)} tokens`;
    return { status: "does_not_fit", says: `DOES NOT FIT: only ${of} on ${device}` };
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

// The position of a subject at the stops with these indices (the last axis moves fastest).
function positionAt(subject, stops) {
  let at = 0;
  subject.axes.forEach((axis, i) => { at = at * axis.stops.length + stops[i]; });
  return subject.positions[at];
}
