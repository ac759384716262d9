/** Times as Kubernetes writes them: RFC 3339, UTC, whole seconds. */

const rfc3339Pattern = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$/;

/** Milliseconds since the epoch -> `2000-01-01T00:00:00Z`; fractions of a second are dropped. */
export function rfc3339(milliseconds: number): string {
  return `${new Date(milliseconds).toISOString().slice(0, 19)}Z`;
}

/** Milliseconds since the epoch; undefined for what is absent or no RFC 3339 time. */
export function instant(text: string | null | undefined): number | undefined {
  if (text === null || text === undefined || !rfc3339Pattern.test(text)) return undefined;
  const milliseconds = Date.parse(text);
  return Number.isNaN(milliseconds) ? undefined : milliseconds;
}
