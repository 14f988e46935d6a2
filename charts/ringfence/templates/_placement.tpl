{{/* SPDX-License-Identifier: Apache-2.0 */}}
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
