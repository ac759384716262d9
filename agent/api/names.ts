/** Labels and annotations by which KubeVirt's components know each other's VMIs. */
export const nodeNameLabel = 'kubevirt.io/nodeName';
export const migrationTargetNodeLabel = 'kubevirt.io/migrationTargetNodeName';
export const createMigrationTargetAnnotation = 'kubevirt.io/create-migration-target';
