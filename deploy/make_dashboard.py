#!/usr/bin/env python3
"""Writes grafana.json: a dashboard of `vlcache serve`'s /metrics.  deploy/make_dashboard.py > deploy/grafana.json"""
import json

WHO = 'model_name=~"$model", instance=~"$instance"'


def rate(name, by=""):
    return f"sum{by}(rate({name}{{{WHO}}}[$__rate_interval]))"


def quantiles(name):
    return [(f"histogram_quantile({q}, {rate(f'vllm:{name}_bucket', ' by (le) ')})", f"p{round(q * 100)}") for q in (0.5, 0.9, 0.99)]


def share(part, whole):
    return f"{rate(part)} / {rate(whole)}"


PANELS = [
    ("Requests", "short", [(f"sum(vllm:num_requests_running{{{WHO}}})", "running"), (f"sum(vllm:num_requests_waiting{{{WHO}}})", "waiting")]),
    ("Tokens a second", "short", [(rate("vllm:prompt_tokens_total"), "prompt"), (rate("vlcache:cached_tokens_total"), "of them not computed"), (rate("vllm:generation_tokens_total"), "generated")]),
    ("Time to first token", "s", quantiles("time_to_first_token_seconds")),
    ("Time between tokens", "s", quantiles("inter_token_latency_seconds")),
    ("Time of a request", "s", quantiles("e2e_request_latency_seconds")),
    ("Waiting for a place", "s", quantiles("request_queue_time_seconds")),
    ("Prompt tokens found as prefix", "percentunit", [(share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"), "found")]),
    ("KV pages in use", "percentunit", [(f"max by (instance) (vllm:kv_cache_usage_perc{{{WHO}}})", "{{instance}}")]),
    ("Hits a second", "short", [(rate("vlcache:cache_hits_total", " by (cache) "), "{{cache}}"), (rate("vlcache:tier_hits_total", " by (tier) "), "{{tier}}")]),
    ("Caches", "bytes", [(f"sum by (cache) (vlcache:cache_bytes{{{WHO}}})", "{{cache}}"), (f"sum(vlcache:cache_max_bytes{{{WHO}}})", "at most, together")]),
    ("Answers a second, by end", "short", [(rate("vllm:request_success_total", " by (finished_reason) "), "{{finished_reason}}")]),
    ("Replies a second, by status", "short", [(rate("vlcache:http_responses_total", " by (status) "), "{{status}}"), (rate("vlcache:requests_refused_total", " by (reason) "), "refused: {{reason}}")]),
]


def panel(number, title, unit, queries):
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number + 1, "type": "timeseries", "title": title, "datasource": source,
        "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "targets": [{"refId": chr(65 + i), "datasource": source, "expr": expr, "legendFormat": legend} for i, (expr, legend) in enumerate(queries)],
    }


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"}, "refresh": 2,
            "query": {"query": query, "refId": name}, "includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"}}


print(json.dumps({
    "title": "vlcache", "uid": "vlcache", "tags": ["vlcache"], "schemaVersion": 38, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "editable": True,
    "templating": {"list": [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        variable("model", "Model", "label_values(vllm:num_requests_running, model_name)"),
        variable("instance", "Server", "label_values(vllm:num_requests_running, instance)"),
    ]},
    "panels": [panel(i, *p) for i, p in enumerate(PANELS)],
}, indent=1))
