{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- /*
  The probes of a daemon, by its name. They read a file, and open no port. The verdict has its own
  delays (enforcer/host/heartbeat.py): it changes after a minute or two, so that to ask often would
  only cost, 30 ms of a core each time. A node that has no time for a probe is no reason to end a
  daemon, so one may take long.
*/ -}}
{{- define "ringfence.probes" -}}
# Until it says something at all. What it then calls its start may take twenty minutes.
startupProbe:
  exec:
    command: [ringfence, health, --live, {{ . }}]
  periodSeconds: 5
  timeoutSeconds: 30
  failureThreshold: 60
livenessProbe:
  exec:
    command: [ringfence, health, --live, {{ . }}]
  periodSeconds: 60
  timeoutSeconds: 30
  # Nor is a disk that hangs for a while: the probe is read from it, the daemon is in memory.
  failureThreshold: 5
readinessProbe:
  exec:
    command: [ringfence, health, {{ . }}]
  periodSeconds: 30
  timeoutSeconds: 30
{{- end }}
