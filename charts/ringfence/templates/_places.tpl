{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- /*
  The host's directories that are mounted, as YAML, by the value that names them: where each is on the host,
  and then where it is in our containers if that is another place.
*/ -}}
{{- define "ringfence.places" -}}
the chart itself: [/var/lib/kubelet/device-plugins, /var/lib/ringfence, /run/ringfence, /run/secrets]
kubeletDir: [{{ .Values.kubeletDir }}/pod-resources]
{{- with .Values.hookDir }}
hookDir: [{{ . }}]
{{- end }}
{{- with .Values.devicePlugin }}
{{- if .cdi.enabled }}
devicePlugin.cdi.specDir: [{{ .cdi.specDir }}]
{{- end }}
{{- with .metricsExporterDir }}
devicePlugin.metricsExporterDir: [{{ . }}, /var/lib/amd-metrics-exporter]
{{- end }}
{{- end }}
{{- with .Values.containerRuntime.containerdStateDir }}
containerRuntime.containerdStateDir: [{{ . }}/io.containerd.runtime.v2.task, /run/containerd/io.containerd.runtime.v2.task]
{{- end }}
{{- with .Values.containerRuntime.crioRunRoot }}
containerRuntime.crioRunRoot: [{{ . }}/overlay-containers, /run/containers/storage/overlay-containers]
{{- end }}
{{- with .Values.containerRuntime.dockerDataRoot }}
containerRuntime.dockerDataRoot: [{{ . }}/containers, /var/lib/docker/containers]
{{- end }}
{{- end -}}

{{- /* A path as the host has it, where /var/run leads to /run. */ -}}
{{- define "ringfence.real" -}}
{{- regexReplaceAll "^/var/run(/|$)" . "/run${1}" -}}
{{- end -}}

{{- /* Fails where two of them are the same, or one lies in the other. */ -}}
{{- define "ringfence.checkPlaces" -}}
{{- $places := include "ringfence.places" . | fromYaml -}}
{{- range $name, $paths := $places -}}
{{- range $other, $theirs := omit $places $name -}}
{{- range $path := $paths -}}
{{- range $their := $theirs -}}
{{- if hasPrefix (printf "%s/" (include "ringfence.real" $path)) (printf "%s/" (include "ringfence.real" $their)) -}}
{{- fail (printf "%s mounts %s, and %s mounts %s: one would hide the other, or be emptied with it; choose directories that do not lie in each other" $name $path $other $their) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* What is mounted at the same path in our own containers as on the host. */ -}}
{{- $hides := "^/[^/]+$|^/(bin|boot|dev|etc|lib[0-9]*|proc|sbin|sys)/|^/usr/local$|^/usr/(local/)?(bin|lib[0-9]*|libexec|sbin|share)(/|$)" -}}
{{- with .Values.hookDir -}}
{{- if or (regexMatch $hides .) (hasPrefix "/run/" (include "ringfence.real" .)) -}}
{{- fail (printf "hookDir is %s: it is mounted at the same path in our own containers, and would hide what they are made of, or be gone after a reboot; choose a directory of its own, such as /var/lib/ringfence-hook" .) -}}
{{- end -}}
{{- end -}}
{{- with .Values.devicePlugin.cdi -}}
{{- if and .enabled (ne .specDir "/etc/cdi") (regexMatch $hides .specDir) -}}
{{- fail (printf "devicePlugin.cdi.specDir is %s: it is mounted at the same path in our own container, and would hide what that is made of; where does your runtime look for CDI specs? /var/run/cdi and /etc/cdi are usual" .specDir) -}}
{{- end -}}
{{- end -}}
{{- end -}}
