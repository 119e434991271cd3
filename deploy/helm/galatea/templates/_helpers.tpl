{{- define "galatea.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, with the chart's unless it contains it. Names have at most 63 characters,
     and the longest suffix is "-headless". */}}
{{- define "galatea.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "galatea.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "galatea.selectorLabels" -}}
app.kubernetes.io/name: {{ include "galatea.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "galatea.labels" -}}
{{ include "galatea.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "galatea.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "galatea.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Seconds from the order to end a pod to its end by force. */}}
{{- define "galatea.gracePeriod" -}}
{{- add .Values.drain.preStopSeconds .Values.server.exitTimeoutSeconds .Values.drain.reserveSeconds -}}
{{- end -}}

{{- define "galatea.scheme" -}}
{{- if .Values.tls.secretName -}}HTTPS{{- else -}}HTTP{{- end -}}
{{- end -}}

{{/* Where the models are, for the server. */}}
{{- define "galatea.repository" -}}
{{- with .Values.modelRepository -}}
{{- if eq .type "bucket" -}}
{{ required "modelRepository.bucket.url is needed with modelRepository.type=bucket" .bucket.url }}
{{- else -}}
{{ .mountPath }}{{ if .subPath }}/{{ .subPath }}{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The variables with which the server reads a bucket. */}}
{{- define "galatea.bucketVariables" -}}
{{- with .Values.modelRepository }}
{{- if eq .type "bucket" }}
{{- range $cloud := list "AWS" "GCS" "AZURE" }}
- name: TRITON_{{ $cloud }}_MOUNT_DIRECTORY
  value: /copies
{{- end }}
{{- with .bucket }}
{{- if .fileSecret }}
- name: {{ .fileVariable }}
  value: /credentials/{{ .fileKey }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "galatea.flags" -}}
{{- with .Values }}
- --model-repository={{ include "galatea.repository" $ }}
- --exit-timeout-secs={{ .server.exitTimeoutSeconds }}
- --model-control-mode={{ .server.modelControlMode }}
{{- range .server.loadModels }}
- --load-model={{ . }}
{{- end }}
{{- if .server.modelMemory }}
- --model-memory={{ .server.modelMemory }}
{{- end }}
{{- range .server.modelGpuMemory }}
- --model-gpu-memory={{ . }}
{{- end }}
{{- if .server.logVerbose }}
- --log-verbose={{ .server.logVerbose }}
{{- end }}
{{- if .server.memoryLimit }}
- --memory-limit={{ .server.memoryLimit }}
{{- end }}
{{- if .server.histograms }}
- --metrics-config=galatea_histograms=true
{{- end }}
{{- if .server.grpcMaxConnectionAgeMs }}
- --grpc-max-connection-age={{ int64 .server.grpcMaxConnectionAgeMs }}
{{- end }}
{{- if .tls.secretName }}
- --http-use-ssl=true
- --http-server-cert=/tls/tls.crt
- --http-server-key=/tls/tls.key
- --grpc-use-ssl=true
- --grpc-server-cert=/tls/tls.crt
- --grpc-server-key=/tls/tls.key
{{- end }}
{{- if .restrictedApis.apis }}
- --http-restricted-api={{ join "," .restrictedApis.apis }}:{{ .restrictedApis.header }}=$(GALATEA_RESTRICTED_API_KEY)
- --grpc-restricted-protocol={{ join "," .restrictedApis.apis }}:{{ .restrictedApis.header }}=$(GALATEA_RESTRICTED_API_KEY)
{{- end }}
{{- range .server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "galatea.modelVolume" -}}
{{- with .Values.modelRepository }}
{{- if eq .type "persistentVolumeClaim" }}
persistentVolumeClaim:
  claimName: {{ .persistentVolumeClaim.existing | default (printf "%s-models" (include "galatea.fullname" $)) }}
  readOnly: true
{{- else if eq .type "image" }}
image:
  reference: {{ required "modelRepository.image.reference is needed with modelRepository.type=image" .image.reference }}
  pullPolicy: {{ .image.pullPolicy }}
{{- else if eq .type "emptyDir" }}
emptyDir:
  sizeLimit: {{ .emptyDir.sizeLimit }}
{{- else }}
{{- if not .volume }}{{ fail "modelRepository.volume is needed with modelRepository.type=volume" }}{{ end }}
{{- toYaml .volume }}
{{- end }}
{{- end }}
{{- end -}}
