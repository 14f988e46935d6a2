{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- /*
  The rights of a container that changes the kernel, as enforcer.privileged says, by (list . $capabilities).
  docs/security.md says what each capability is for.
*/ -}}
{{- define "ringfence.kernelRights" -}}
{{- $root := index . 0 -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if $root.Values.enforcer.privileged }}
privileged: true
{{- else }}
# The API server and the runtimes take allowPrivilegeEscalation for granted beside SYS_ADMIN.
privileged: false
capabilities:
  drop: [ALL]
  add: {{ index . 1 | toJson }}
# It allows bpf beside SYS_ADMIN, and perf_event_open beside that or, newer ones, PERFMON.
seccompProfile:
  type: RuntimeDefault
# A confined container may not write cgroups and pins: not by the SELinux type, nor by the AppArmor
# profile, that runtimes give.
seLinuxOptions:
  type: spc_t
{{- if include "ringfence.appArmorField" $root }}
appArmorProfile:
  type: Unconfined
{{- end }}
{{- end }}
{{- end -}}

{{- /* Of the containers that write to the host's directories without a right; empty: the runtime's own. */ -}}
{{- define "ringfence.seLinuxType" -}}
{{- .Values.devicePlugin.seLinuxType | default (.Values.openshift.enabled | default false | ternary "spc_t" "") -}}
{{- end -}}

{{- /* Not empty where the API server knows the field; one that does not takes an annotation. */ -}}
{{- define "ringfence.appArmorField" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end -}}

{{- /*
  Not empty where the API server knows ValidatingAdmissionPolicies, and a token names its node. The
  kinds of an API are told by a cluster alone, its version to "helm template" too.
*/ -}}
{{- define "ringfence.policies" -}}
{{- if or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}yes{{ end -}}
{{- end -}}

{{- /* For the container of that name, by (list . $name), what is a field from 1.30 on. */ -}}
{{- define "ringfence.unconfinedAnnotation" -}}
{{- $root := index . 0 -}}
{{- if not (or $root.Values.enforcer.privileged (include "ringfence.appArmorField" $root)) -}}
container.apparmor.security.beta.kubernetes.io/{{ index . 1 }}: unconfined
{{- end -}}
{{- end -}}
