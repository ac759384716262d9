/** `infoSource` of status.interfaces: names joined by ", ". */
const separator = ', ';

export function containsInfoSource(current: string | undefined, name: string): boolean {
  return (current ?? '').split(separator).includes(name);
}

export function addInfoSource(current: string | undefined, name: string): string {
  if (!current) return name;
  return containsInfoSource(current, name) ? current : `${current}${separator}${name}`;
}
