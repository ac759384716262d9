/** Versions of the command protocol that this agent speaks. */
export const supportedCmdVersions: readonly number[] = [1];

/**
 * The highest version that both sides have. Throws with the text that operators know
 * (KubeVirt pkg/handler-launcher-com GetHighestCompatibleVersion).
 */
export function highestCompatibleVersion(server: readonly number[], client: readonly number[]): number {
  const best = [...server].sort((a, b) => b - a).find((version) => client.includes(version));
  if (best === undefined) {
    const sorted = [...server].sort((a, b) => b - a);
    throw new Error(`no compatible version found, server: ${goSlice(sorted)}, client: ${goSlice(client)}`);
  }
  return best;
}

function goSlice(values: readonly number[]): string {
  return `[${values.join(' ')}]`;
}
