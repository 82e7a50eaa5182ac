{{/* Template of an agent's pod. Takes: root, component, workers, of, account. */}}
{{- define "stator.agentPod" -}}
{{- $of := .of }}
metadata:
  labels:
    {{- include "stator.podSelector" $ | nindent 4 }}
    stator.dev/fleet: {{ include "stator.fullname" $.root }} # what proxies select
    {{- with $of.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $of.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ $.account }}
  automountServiceAccountToken: true
  # No preStop hook: an agent that is told to end refuses new requests, which proxies send
  # elsewhere, or keep until a worker is there, and finishes those that run.
  terminationGracePeriodSeconds: {{ add $of.drainSeconds 60 }}
  securityContext:
    {{- include "stator.podSecurity" $ | nindent 4 }}
  {{- include "stator.place" $ | nindent 2 }}
  containers:
  - name: agent
    image: {{ include "stator.image" (dict "root" $.root "image" $of.image) }}
    imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
    {{- with $of.command }}
    command:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    args:
    - agent
    - --engine={{ $of.engine }}
    {{- with $of.role }}
    - --role={{ . }}
    {{- end }}
    {{- with $of.model }}
    - --model={{ . }}
    {{- end }}
    {{- with $of.modelName }}
    - --model-name={{ . }}
    {{- end }}
    - --discovery=kubernetes://$(NAMESPACE)?selector=stator.dev/fleet={{ include "stator.fullname" $.root }}
    - --listen=0.0.0.0:7000
    - --advertise-host=$(POD_IP)
    - --metrics-host=0.0.0.0
    - --drain-timeout-s={{ $of.drainSeconds }}
    - --log-format={{ $.root.Values.logFormat }}
    {{- if $.root.Values.requestTls.enabled }}
    {{- include "stator.requestTlsArgs" $ | nindent 4 }}
    - --request-tls-client-auth
    {{- end }}
    {{- if $.root.Values.fleetSecret }}
    - --fleet-secret-file=/fleet/secret
    {{- end }}
    {{- with $of.args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if or $of.engineArgs (gt (int $of.nodes) 1) }}
    - --
    {{- end }}
    {{- with $of.engineArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if gt (int $of.nodes) 1 }}
    {{- include "stator.nodeArgs" (dict "nodes" $of.nodes "rank" "0") | nindent 4 }}
    {{- end }}
    env:
    {{- include "stator.namespaceEnv" $ | nindent 4 }}
    # These two say which object is the pod's.
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    - name: POD_UID
      valueFrom:
        fieldRef:
          fieldPath: metadata.uid
    - name: POD_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
    {{- include "stator.engineEnv" $ | nindent 4 }}
    {{- with $of.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    ports:
    - name: requests # and KV events and load
      containerPort: 7000
    - name: metrics
      containerPort: 9091
    {{- include "stator.probes" dict | nindent 4 }}
    resources:
      {{- toYaml $of.resources | nindent 6 }}
    securityContext:
      {{- include "stator.containerSecurity" $ | nindent 6 }}
    volumeMounts:
    {{- include "stator.engineMounts" $of | nindent 4 }}
    {{- if $.root.Values.requestTls.enabled }}
    - name: certificates
      mountPath: /certificates
      readOnly: true
    {{- end }}
    {{- if $.root.Values.fleetSecret }}
    - name: fleet
      mountPath: /fleet
      readOnly: true
    {{- end }}
  volumes:
  {{- include "stator.engineVolumes" $of | nindent 2 }}
  {{- if $.root.Values.requestTls.enabled }}
  - name: certificates
    secret:
      secretName: {{ include "stator.requestTlsSecret" (dict "root" $.root "component" "agent") }}
      defaultMode: 288 # 0440
  {{- end }}
  {{- with $.root.Values.fleetSecret }}
  - name: fleet
    secret:
      secretName: {{ . }}
      defaultMode: 288 # 0440
  {{- end }}
{{- end }}

{{/* Flags that join the nodes of one vLLM. Takes: nodes, rank. */}}
{{- define "stator.nodeArgs" -}}
- --distributed-executor-backend=mp
- --nnodes={{ .nodes }}
- --node-rank={{ .rank }}
- --master-addr=$(LWS_LEADER_ADDRESS)
- --master-port=29500
{{- end }}

{{/* Template of the pods of an engine's nodes that have no agent. Takes: root, workers, of. */}}
{{- define "stator.nodePod" -}}
{{- $of := .of }}
metadata:
  labels:
    {{- include "stator.podSelector" (merge (dict "component" "engine-node") .) | nindent 4 }}
spec:
  automountServiceAccountToken: false
  # The leader's agent ends its engine first, which ends the other nodes.
  terminationGracePeriodSeconds: {{ add $of.drainSeconds 60 }}
  securityContext:
    {{- include "stator.podSecurity" $ | nindent 4 }}
  {{- include "stator.place" (merge (dict "component" "engine-node") .) | nindent 2 }}
  containers:
  - name: engine
    image: {{ include "stator.image" (dict "root" $.root "image" $of.image) }}
    imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
    command: [vllm]
    args:
    - serve
    - {{ $of.model }}
    - --headless
    {{- with $of.engineArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "stator.nodeArgs" (dict "nodes" $of.nodes "rank" "$(LWS_WORKER_INDEX)") | nindent 4 }}
    env:
    {{- include "stator.engineEnv" $ | nindent 4 }}
    {{- with $of.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    resources:
      {{- toYaml $of.resources | nindent 6 }}
    securityContext:
      {{- include "stator.containerSecurity" $ | nindent 6 }}
    volumeMounts:
    {{- include "stator.engineMounts" $of | nindent 4 }}
  volumes:
  {{- include "stator.engineVolumes" $of | nindent 2 }}
{{- end }}
