{{- define "countersign.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "countersign.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "countersign.labels" -}}
{{ include "countersign.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* The configuration file: the given keys, and those that follow from other values. */}}
{{- define "countersign.config" -}}
{{- $name := include "countersign.fullname" . -}}
{{- $service := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- $hosts := concat $service .Values.allowedHosts -}}
{{- if .Values.ingress.host }}{{ $hosts = append $hosts .Values.ingress.host }}{{ end -}}
{{- $derived := dict "listen" (printf "0.0.0.0:%v" .Values.port) "allowed_hosts" $hosts -}}
{{- if .Values.publicUrl }}{{ $_ := set $derived "public_url" .Values.publicUrl }}{{ end -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $derived "tls" (dict "cert" "/etc/countersign/tls/tls.crt" "key" "/etc/countersign/tls/tls.key") -}}
{{- else -}}
{{- $_ := set $derived "behind_tls_proxy" true -}}
{{- end -}}
{{- $database := .Values.store.postgresql -}}
{{- if and (eq .Values.store.type "postgresql") (or $database.url $database.caSecret) -}}
{{- $store := dict -}}
{{- if $database.url }}{{ $_ := set $store "url" $database.url }}{{ end -}}
{{- if $database.caSecret }}{{ $_ := set $store "ca" (printf "/etc/countersign/database/%s" $database.caKey) }}{{ end -}}
{{- $_ := set $derived "store" $store -}}
{{- end -}}
{{- merge $derived (deepCopy .Values.config) (dict "auth" (dict "mode" "keys")) | toYaml -}}
{{- end -}}
