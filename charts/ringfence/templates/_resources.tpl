{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- /* A quantity of Kubernetes as a plain number. */ -}}
{{- define "ringfence.number" -}}
{{- $units := dict "" 1 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 0x1p10 "Mi" 0x1p20 "Gi" 0x1p30 "Ti" 0x1p40 "Pi" 0x1p50 "Ei" 0x1p60 -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- mulf (trimSuffix $unit $text | float64) (get $units $unit) -}}
{{- end -}}

{{- /* Fails where a container's limit is below what it asks for, by (list $name $resources). */ -}}
{{- define "ringfence.checkResources" -}}
{{- $name := index . 0 -}}
{{- with index . 1 -}}
{{- $limits := default dict .limits -}}
{{- range $what, $asked := default dict .requests -}}
{{- if hasKey $limits $what -}}
{{- $limit := get $limits $what -}}
{{- if gt (include "ringfence.number" $asked | float64) (include "ringfence.number" $limit | float64) -}}
{{- fail (printf "%s.resources.limits.%s is %v, and requests.%s is %v: no pod may ask for more than its limit; set the request too" $name $what $limit $what $asked) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
