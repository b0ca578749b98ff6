{{- define "seckill.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "seckill.labels" -}}
app.kubernetes.io/name: seckill
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* The labels that select the pods of one component: (dict "root" $ "component" "web"). */}}
{{- define "seckill.selector" -}}
app.kubernetes.io/name: seckill
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* No process of the shop needs a privilege, and it writes only to /tmp. */}}
{{- define "seckill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "seckill.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Two pods of a component run on two machines where possible. */}}
{{- define "seckill.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "seckill.selector" . | nindent 8 }}
{{- end }}

{{- /* The stores that this chart starts: name -> number of servers. */}}
{{- define "seckill.stores" -}}
{{- $stores := .Values.stores -}}
{{- if not $stores.databaseUrl }}mariadb: 1
{{ end }}
{{- if not $stores.redisUrl }}redis: 1
{{ end }}
{{- if not $stores.cacheUrl }}cache: 1
{{ end }}
{{- if and $stores.full (not $stores.redlockUrls) }}redlock: 5
{{ end }}
{{- if and $stores.full (not $stores.zookeeperHosts) }}zookeeper: 3
{{ end }}
{{- end }}

{{- /* Addresses of the servers of a StatefulSet, separated by commas. */}}
{{- define "seckill.addresses" -}}
{{- $name := include "seckill.name" .root -}}
{{- range $number := until (int .count) -}}
{{ if $number }},{{ end }}{{ $.prefix }}{{ $name }}-{{ $.store }}-{{ $number }}.{{ $name }}-{{ $.store }}:{{ $.port }}{{ $.suffix }}
{{- end -}}
{{- end }}

{{- /* The environment of every process of the shop. */}}
{{- define "seckill.environment" -}}
{{- $name := include "seckill.name" . -}}
{{- $stores := .Values.stores -}}
- {name: DJANGO_SETTINGS_MODULE, value: shop.settings.production}
- {name: HTTPS, value: {{ ternary "1" "0" .Values.https | quote }}}
- {name: WAITING_ROOM, value: {{ ternary "1" "0" .Values.waitingRoom | quote }}}
- {name: PROXY_HOPS, value: "1"}
- name: SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: SECRET_KEY}}
- name: SECRET_KEY_FALLBACKS
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: SECRET_KEY_FALLBACKS, optional: true}}
- {name: CURRENCY, value: {{ .Values.currency | quote }}}
- name: STRIPE_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: STRIPE_SECRET_KEY, optional: true}}
- name: STRIPE_PUBLISHABLE_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: STRIPE_PUBLISHABLE_KEY, optional: true}}
- name: STRIPE_WEBHOOK_SECRET
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: STRIPE_WEBHOOK_SECRET, optional: true}}
- name: EMAIL_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: EMAIL_URL, optional: true}}
- {name: SITE_URL, value: {{ printf "%s://%s" (ternary "https" "http" .Values.https) .Values.host | quote }}}
- {name: ALLOWED_HOSTS, value: {{ .Values.host | quote }}}
- {name: CSRF_TRUSTED_ORIGINS, value: {{ printf "%s://%s" (ternary "https" "http" .Values.https) .Values.host | quote }}}
{{- /* URLs may contain $(MYSQL_PASSWORD) and $(REDIS_PASSWORD). */}}
- name: MYSQL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: MYSQL_PASSWORD, optional: {{ ne $stores.databaseUrl "" }}}}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: REDIS_PASSWORD, optional: {{ and (ne $stores.redisUrl "") (ne $stores.cacheUrl "") }}}}
- {name: DATABASE_URL, value: {{ $stores.databaseUrl | default (printf "mysql://shop:$(MYSQL_PASSWORD)@%s-mariadb:3306/shop" $name) | quote }}}
- {name: REDIS_URL, value: {{ $stores.redisUrl | default (printf "redis://:$(REDIS_PASSWORD)@%s-redis:6379/0" $name) | quote }}}
- {name: QUEUE_REDIS_URL, value: {{ $stores.queueRedisUrl | quote }}}
- {name: CACHE_URL, value: {{ $stores.cacheUrl | default (printf "redis://:$(REDIS_PASSWORD)@%s-cache:6379/0" $name) | quote }}}
{{- if or $stores.full $stores.redlockUrls }}
- name: REDLOCK_URLS
  value: {{ $stores.redlockUrls | default (include "seckill.addresses" (dict "root" . "store" "redlock" "count" 5 "prefix" "redis://:$(REDIS_PASSWORD)@" "port" 6379 "suffix" "/0")) | quote }}
{{- end }}
{{- if or $stores.full $stores.zookeeperHosts }}
- name: ZOOKEEPER_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secretName }}, key: ZOOKEEPER_PASSWORD, optional: {{ ne $stores.zookeeperHosts "" }}}}
- name: ZOOKEEPER_HOSTS
  value: {{ $stores.zookeeperHosts | default (include "seckill.addresses" (dict "root" . "store" "zookeeper" "count" 3 "prefix" "" "port" 2181 "suffix" "")) | quote }}
{{- end }}
- {name: PROMETHEUS_MULTIPROC_DIR, value: /tmp/metrics}
- {name: METRICS_PORT, value: "9000"}
- {name: HEARTBEAT_FILE, value: /tmp/heartbeat}
{{- range $key, $value := .Values.environment }}
- {name: {{ $key }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- /* The image and what every container of the shop has. */}}
{{- define "seckill.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "seckill.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end }}
