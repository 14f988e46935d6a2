{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- /* Fails for what an API server would refuse of the tolerations. */ -}}
{{- define "ringfence.checkTolerations" -}}
{{- range $index, $one := .Values.tolerations -}}
{{- $operator := default "Equal" .operator -}}
{{- if and (eq $operator "Exists") .value -}}
{{- fail (printf "tolerations[%d] has operator Exists and value %s: Exists stands for any value; leave the value out, or set operator to Equal" $index .value) -}}
{{- end -}}
{{- if and (eq $operator "Equal") (not .key) -}}
{{- fail (printf "tolerations[%d] has no key and operator Equal: only Exists goes without one, and then means every taint; name the taint's key, or set operator to Exists" $index) -}}
{{- end -}}
{{- if and (hasKey . "tolerationSeconds") (ne (default "" .effect) "NoExecute") -}}
{{- fail (printf "tolerations[%d] has tolerationSeconds and effect %q: only a NoExecute taint ends pods that run; set effect to NoExecute, or leave tolerationSeconds out" $index (default "" .effect)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* On which nodes the pods are, and what they need to get there. */ -}}
{{- define "ringfence.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.affinity .Values.nodeFeatureDiscovery }}
affinity:
  {{- with .Values.affinity }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if .Values.nodeFeatureDiscovery }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        # Radeon are VGA controllers, MI200 display controllers, MI300 processing accelerators.
        {{- range $class := list "0300" "0380" "1200" }}
        - matchExpressions:
            - key: feature.node.kubernetes.io/pci-{{ $class }}_1002.present
              operator: In
              values: ["true"]
        {{- end }}
  {{- end }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
