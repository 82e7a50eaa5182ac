{{/* Name of everything that this release owns. */}}
{{- define "stator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels that select the pods of a component. Takes: root, component. */}}
{{- define "stator.selector" -}}
app.kubernetes.io/name: stator
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The same for one key of a component that has several kinds of pods. Takes: root, component, workers
     or none. */}}
{{- define "stator.podSelector" -}}
{{ include "stator.selector" . }}
{{- with .workers }}
stator.dev/workers: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of an object. Takes: root, component. */}}
{{- define "stator.labels" -}}
{{ include "stator.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: stator
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object. Takes: root, component, name, and a namespace or none. */}}
{{- define "stator.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "stator.labels" . | nindent 2 }}
{{- end }}

{{/* Image of a container. Takes: root, and an image of its own or none. */}}
{{- define "stator.image" -}}
{{- with .image }}
{{- . }}
{{- else }}
{{- printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* Security of a pod: nobody's user, the system calls that the runtime allows. */}}
{{- define "stator.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Security of a container: no further rights, nothing to write but its volumes. */}}
{{- define "stator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Fields of a pod's place: spread over nodes and zones, and where the values say. Takes: root, component,
     workers or none, of (the values of the component). */}}
{{- define "stator.place" -}}
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "stator.podSelector" $ | nindent 6 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "tolerations" "priorityClassName" "runtimeClassName" }}
{{- with index $.of $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Probes of a process that answers /live as soon as it runs and /health while it serves. */}}
{{- define "stator.probes" -}}
startupProbe:
  httpGet:
    path: /live
    port: metrics
  periodSeconds: 1
  failureThreshold: 30
# Not the readiness: a process that is full or on its way out is alive.
livenessProbe:
  httpGet:
    path: /live
    port: metrics
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /health
    port: metrics
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ .failures | default 1 }}
{{- end }}

{{/* Environment variable with the pod's namespace. */}}
{{- define "stator.namespaceEnv" -}}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/* Flags of the request plane under certificates. */}}
{{- define "stator.requestTlsArgs" -}}
- --request-tls-cert-dir=/certificates
- --request-tls-ca-file=/certificates/ca.crt
- --request-tls-server-name=stator-agent
{{- end }}

{{/* Flags of replicas that show each other the same certificates. */}}
{{- define "stator.peersTlsArgs" -}}
- --peers-ca-file=/certificates/ca.crt
- --peers-cert-path=/certificates
{{- end }}

{{/* Volumes of a container that runs an engine, and their mounts. Takes: the values. */}}
{{- define "stator.engineMounts" -}}
- name: cache
  mountPath: /cache
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
{{- if .modelClaim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- with .volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "stator.engineVolumes" -}}
- name: cache
  emptyDir: {}
- name: tmp
  emptyDir: {}
- name: shm # ranks of one engine share memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .sharedMemory }}
{{- with .modelClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- with .volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Environment of an engine in a container that cannot write elsewhere. */}}
{{- define "stator.engineEnv" -}}
- name: HOME # where engines cache what they compile
  value: /cache
- name: TMPDIR # where the engine's sockets are
  value: /tmp
{{- end }}

{{/* Settings of a key: the defaults, replaced field by field. Takes: defaults, given. Gives YAML. */}}
{{- define "stator.settings" -}}
{{- $of := deepCopy .defaults }}
{{- range $key, $value := .given }}
{{- $_ := set $of $key $value }}
{{- end }}
{{- with $of.gpus }}
{{- $_ := set $of.resources "limits" (merge (dict $of.gpuResource .) ($of.resources.limits | default dict)) }}
{{- end }}
{{- toYaml $of }}
{{- end }}

{{/* Name of the secret with a component's certificate. Takes: root, component. */}}
{{- define "stator.requestTlsSecret" -}}
{{- index .root.Values.requestTls.secrets .component | default (printf "%s-%s-tls" (include "stator.fullname" .root) .component) }}
{{- end }}

{{/* Name of the secret with the certificate that clients see; empty without one. */}}
{{- define "stator.proxyTlsSecret" -}}
{{- if .Values.proxy.certManager.enabled }}
{{- printf "%s-proxy-api-tls" (include "stator.fullname" .) }}
{{- else }}
{{- .Values.proxy.tlsSecret }}
{{- end }}
{{- end }}

{{/* Rules of a role of the plain manifests, so that both give the same rights. Takes: root, file, role. */}}
{{- define "stator.rules" -}}
{{- $role := .role }}
{{- range regexSplit "(?m)^---\\n" (.root.Files.Get .file) -1 }}
{{- $object := fromYaml . }}
{{- if and (eq ($object.kind | default "") "Role") (eq $object.metadata.name $role) }}
{{- toYaml $object.rules }}
{{- end }}
{{- end }}
{{- end }}

{{/* A service account with a role of these rules in its namespace. Takes: root, component, name, rules. */}}
{{- define "stator.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "stator.metadata" . | nindent 2 }}
# Only the pod that needs the token mounts it.
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "stator.metadata" . | nindent 2 }}
rules:
{{ .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "stator.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* Most pods that a drain may take at once. Takes: root, component, name, and workers or none. */}}
{{- define "stator.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "stator.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  # One that is not ready serves nobody, and may always go.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "stator.podSelector" . | nindent 6 }}
{{- end }}

{{/* Peers of a network policy: where Prometheus runs. */}}
{{- define "stator.monitoringPeers" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace }}
{{- end }}
