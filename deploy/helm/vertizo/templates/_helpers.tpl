{{- define "vertizo.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "vertizo.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vertizo.labels" -}}
{{ include "vertizo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.role | kebabcase }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "vertizo.secret" -}}
{{- .Values.certificates.existingSecret | default (include "vertizo.name" .) -}}
{{- end -}}

{{- define "vertizo.claim" -}}
{{- /* of a pair: the root, and "data" or "state" */ -}}
{{- $root := first . -}}
{{- $which := last . -}}
{{- (get $root.Values $which).existingClaim | default (printf "%s-%s" (include "vertizo.name" $root) $which) -}}
{{- end -}}
