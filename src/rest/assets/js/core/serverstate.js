// What the state of a server means: whether it works, and what becomes of calls to its tools.

const RANKS = { down: 0, needs_connection: 2, connecting: 2, up: 3 };

/** Returns true for a server that does not work: it is down, or is still trying after a failure. */
export const isBroken = (server) => server.status === 'down' || (server.status === 'connecting' && Boolean(server.lastError)) || server.breaker === 'open';

/** Returns true for a server that is starting, as long as nothing has gone wrong. */
export const isStarting = (server) => server.status === 'connecting' && !server.lastError;

// The place of a server in the list: those that do not work come first.
const rankOf = (server) => (isBroken(server) ? Math.min(1, RANKS[server.status] ?? 1) : RANKS[server.status] ?? 2);

/** Compares two servers for the list. Built-in modules come last among those of one rank, because nobody looks for them. */
export const compareServers = (a, b) => rankOf(a) - rankOf(b) || Number(a.kind === 'module') - Number(b.kind === 'module');

/** Returns the number of definitions of a server that wait for a reviewer. */
export const reviewCount = ({ review }) => (review ? review.new + review.changed + review.reads + (review.known ?? 0) : 0);

/** Returns the numbers of a server's tools by what happens to calls, as `[key of the text, number]` without zeros. */
export function toolStates({ verdicts }) {
  const states = [['serverform.toolsRun', verdicts?.allow], ['serverform.toolsReviewed', verdicts?.review], ['serverform.toolsDenied', verdicts?.deny], ['serverform.toolsDepend', verdicts?.depends]];
  return states.filter(([, n]) => n > 0);
}
