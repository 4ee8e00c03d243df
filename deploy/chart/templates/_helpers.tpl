{{- define "nodeplug.labels" -}}
app.kubernetes.io/name: nodeplug
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "nodeplug.selector" -}}
app.kubernetes.io/name: nodeplug
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nodeplug.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The main file of the configuration. Plugins are in plugins.d, so that a change of theirs needs no other pod. */ -}}
{{- define "nodeplug.main" -}}
version = 1

[supervisor]
install = true
cgroups = {{ .Values.privileged }}
program_cgroup = {{ ternary .Values.programCgroup "" .Values.privileged | quote }}
csi = {{ not (empty .Values.csi.drivers) }}
listen = "{{ .Values.listen.host }}:{{ .Values.listen.port }}"
cni_bin_dir = {{ .Values.cniBinDir | quote }}
cni_conf_dir = {{ .Values.cniConfDir | quote }}
flexvolume_dir = {{ .Values.flexvolumeDir | quote }}
plugins_registry_dir = "{{ .Values.kubeletDir }}/plugins_registry"
{{ .Values.supervisor }}
{{- if .Values.provisioner.enabled }}

[provisioner]
namespace = {{ .Release.Namespace | quote }}
{{- end }}
{{- if .Values.cluster.enabled }}

[cluster]
{{- end }}
{{- if .Values.dra.enabled }}

[dra]
taint = {{ .Values.dra.taint | quote }}
order = {{ .Values.dra.order | quote }}
{{- end }}
{{- if .Values.networks.enabled }}

[networks]
{{- end }}
{{- end -}}

{{- /* What both containers see of the node. Each line says who needs it. */ -}}
{{- define "nodeplug.mounts" -}}
{{- $both := ternary "Bidirectional" "None" .Values.privileged -}}
- {name: configuration, mountPath: /etc/nodeplug/nodeplug.toml, subPath: nodeplug.toml, readOnly: true}
- {name: plugins, mountPath: /etc/nodeplug/plugins.d, readOnly: true}
- {name: state, mountPath: /var/lib/nodeplug, mountPropagation: {{ $both }}}
- {name: run, mountPath: /run/nodeplug, mountPropagation: {{ $both }}}
- {name: kubelet, mountPath: {{ .Values.kubeletDir }}, mountPropagation: {{ $both }}}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" }}
- {name: device-plugins, mountPath: /var/lib/kubelet/device-plugins}
- {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources}
{{- end }}
- {name: flexvolume, mountPath: {{ .Values.flexvolumeDir }}}
- {name: cni-bin, mountPath: {{ .Values.cniBinDir }}}
- {name: cni-conf, mountPath: {{ .Values.cniConfDir }}}
- {name: cni-state, mountPath: /var/lib/cni}
- {name: netns, mountPath: /run/netns, mountPropagation: {{ ternary "HostToContainer" "None" .Values.privileged }}}
- {name: dev, mountPath: /dev}
{{- if include "nodeplug.cdi" . }}
- {name: cdi, mountPath: /var/run/cdi}
{{- end }}
{{- if .Values.privileged }}
- {name: cgroup, mountPath: /sys/fs/cgroup}
{{- if .Values.nodeRoot }}
- {name: root, mountPath: /node/root, readOnly: true, mountPropagation: HostToContainer}
{{- end }}
{{- range $number, $path := .Values.folders }}
- {name: folder-{{ $number }}, mountPath: {{ $path }}, mountPropagation: Bidirectional}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Not empty if the folder of CDI specs is to be mounted, and is not among `folders` already. */ -}}
{{- define "nodeplug.cdi" -}}
{{- if and .Values.dra.enabled (not (and .Values.privileged (has "/var/run/cdi" .Values.folders))) }}yes{{ end }}
{{- end -}}

{{- define "nodeplug.security" -}}
{{- if .Values.privileged -}}
# Kubernetes allows mounts that the node sees to privileged containers alone; besides, plugins write /proc/sys, and open
# devices of which no list is known before.
privileged: true
{{- else -}}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  # Each plugin's process has a user of its own, whose folders it gets.
  add: [CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETPCAP, SETUID]
{{- end }}
{{- end -}}

{{- /* Where kubelet finds what listens everywhere. */ -}}
{{- define "nodeplug.probed" -}}
{{ ternary "127.0.0.1" .Values.listen.host (eq .Values.listen.host "0.0.0.0") | quote }}
{{- end -}}

{{- /* What a kube-scheduler of the chart's own is told. */ -}}
{{- define "nodeplug.scheduler" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: {{ .Release.Name }}-extender
profiles:
  - schedulerName: {{ .Values.extender.scheduler.name }}
extenders:
  - urlPrefix: http://127.0.0.1:{{ .Values.extender.port }}/{{ base .Values.extender.resource }}
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: 1
    nodeCacheCapable: true
    managedResources:
      - name: {{ .Values.extender.resource }}
{{- end -}}

{{- /* The API server, where it is not reached through the Service. */ -}}
{{- define "nodeplug.reached" -}}
{{- if or .Values.apiServer.host .Values.apiServer.port -}}
env:
  {{- with .Values.apiServer.host }}
  - {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
  {{- end }}
  {{- with .Values.apiServer.port }}
  - {name: KUBERNETES_SERVICE_PORT, value: {{ . | toString | quote }}}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "nodeplug.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* A probe: what, the port, the scheme, and whether the pod has a network of its own. */ -}}
{{- define "nodeplug.asked" -}}
httpGet: { {{- if not (index . 3) }}host: 127.0.0.1, {{ end }}port: {{ index . 1 }}, path: /{{ index . 0 }}, scheme: {{ index . 2 }}}
periodSeconds: 5
timeoutSeconds: 5
{{- end -}}
