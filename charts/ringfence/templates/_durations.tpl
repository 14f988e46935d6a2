{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- /* A Prometheus duration in milliseconds. */ -}}
{{- define "ringfence.milliseconds" -}}
{{- $units := dict "d" 86400000 "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+(ms|[dhms])" . -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $total = add $total (mul (trimSuffix $unit . | int64) (get $units $unit)) -}}
{{- end -}}
{{- $total -}}
{{- end -}}
