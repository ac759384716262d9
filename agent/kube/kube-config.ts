import { KubeConfig } from '@kubernetes/client-node';

/**
 * Where the API server is and how to log in: the file given, otherwise the service account of the pod.
 * Throws when neither is usable, and for credentials that another program would have to fetch, because the
 * agent starts no programs.
 */
export function loadKubeConfig(file: string | undefined, env: NodeJS.ProcessEnv): KubeConfig {
  const kubeConfig = new KubeConfig();
  if (file !== undefined) {
    try {
      kubeConfig.loadFromFile(file);
    } catch (error) {
      throw new Error(`cannot read kubeconfig ${file}`, { cause: error });
    }
  } else {
    if (!env['KUBERNETES_SERVICE_HOST'] || !env['KUBERNETES_SERVICE_PORT']) {
      throw new Error(
        'unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined',
      );
    }
    kubeConfig.loadFromCluster();
  }
  if (kubeConfig.getCurrentCluster() === null) throw new Error('the kubeconfig has no current cluster');
  const user = kubeConfig.getCurrentUser();
  if (user?.exec || user?.authProvider?.config?.['cmd-path']) {
    throw new Error(`the kubeconfig's user ${user.name} needs a credential plugin, which is not supported`);
  }
  return kubeConfig;
}
