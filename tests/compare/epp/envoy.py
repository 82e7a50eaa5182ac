"""Envoy's configuration: a listener for each variant, all in one process, so that only what stands
beside Envoy differs between them."""

import json

TYPES = "type.googleapis.com/envoy.extensions"
HTTP = f"{TYPES}.upstreams.http.v3.HttpProtocolOptions"
# Nothing may wait in line, or be refused, because of a limit of the gateway.
LIMITS = {"thresholds": [
    {"max_connections": 40000, "max_pending_requests": 40000, "max_requests": 40000}]}
# Without this Envoy resets every stream to the picker where it should end it.
RUNTIME = {"layers": [{"name": "static", "static_layer": {
    "envoy.reloadable_features.ext_proc_graceful_grpc_close": True}}]}


def socket_address(address):
    """An `ip:port` as Envoy has it."""
    host, port = address.split(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def at(cluster, address):
    """A cluster of one host."""
    hosts = [{"lb_endpoints": [{"endpoint": {"address": socket_address(address)}}]}]
    return {"name": cluster, "type": "STATIC", "connect_timeout": "5s", "circuit_breakers": LIMITS,
            "load_assignment": {"cluster_name": cluster, "endpoints": hosts}}


def picker_cluster(name, address):
    """The cluster of a picker, or of what stands in its place."""
    http2 = {"max_concurrent_streams": 100000, "initial_stream_window_size": 1 << 20,
             "initial_connection_window_size": 16 << 20}
    options = {"@type": HTTP, "explicit_http_config": {"http2_protocol_options": http2}}
    return at(name, address) | {
        "typed_extension_protocol_options": {HTTP.rpartition("/")[2]: options}}


def original_destination():
    """The cluster that goes wherever the picker said."""
    return {"name": "original-destination", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "5s", "circuit_breakers": LIMITS,
            "original_dst_lb_config": {"use_http_header": True,
                                       "http_header_name": "x-gateway-destination-endpoint"}}


def ext_proc(cluster):
    """The filter that asks the picker, with both bodies in full duplex, as gateways generate it."""
    mode = {f"{side}_{part}_mode": "FULL_DUPLEX_STREAMED" if part == "body" else "SEND"
            for side in ("request", "response") for part in ("header", "body", "trailer")}
    return {"name": "envoy.filters.http.ext_proc", "typed_config": {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": cluster, "authority": "picker"}},
        "failure_mode_allow": False,
        "message_timeout": "1000s",
        "processing_mode": mode,
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]}}}}


def listener(name, address, cluster, filters):
    """A listener whose requests pass the filters and go to one cluster."""
    router = {"name": "envoy.filters.http.router", "typed_config": {
        "@type": f"{TYPES}.filters.http.router.v3.Router", "suppress_envoy_headers": True}}
    route = {"match": {"prefix": "/"},
             "route": {"cluster": cluster, "timeout": "0s", "idle_timeout": "3600s"}}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name, "stream_idle_timeout": "3600s", "http_filters": [*filters, router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}}
    chain = {"filters": [
        {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": name, "address": socket_address(address), "filter_chains": [chain],
            "per_connection_buffer_limit_bytes": 1 << 20}


def bootstrap(listeners, upstream, pickers):
    """The whole configuration, as JSON. `listeners` is where each variant is asked, `upstream` where
    the one without a picker goes, and `pickers` has the address of each variant that has one."""
    clusters = [original_destination(), at("upstream", upstream)]
    clusters += [picker_cluster(name, address) for name, address in pickers.items()]
    served = []
    for name, address in listeners.items():
        asked = name in pickers
        served.append(listener(name, address, "original-destination" if asked else "upstream",
                               [ext_proc(name)] if asked else []))
    return json.dumps({"layered_runtime": RUNTIME,
                       "static_resources": {"listeners": served, "clusters": clusters}}, indent=1)
