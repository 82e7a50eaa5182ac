/* Stands in for libibverbs, to which Mooncake is linked whatever it transfers over: there are no
 * InfiniBand devices, so that only looking for them must work. */
#include <stddef.h>

void *ibv_get_device_list(int *count)
{
	if (count)
		*count = 0;
	return NULL;
}

void ibv_free_device_list(void *list)
{
	(void)list;
}

int ibv_fork_init(void)
{
	return 0;
}

/* What takes a device, or something that was made with one. */
#define NEVER_CALLED(name) void name(void) { __builtin_trap(); }

NEVER_CALLED(_ibv_query_gid_ex)
NEVER_CALLED(ibv_ack_async_event)
NEVER_CALLED(ibv_ack_cq_events)
NEVER_CALLED(ibv_alloc_pd)
NEVER_CALLED(ibv_close_device)
NEVER_CALLED(ibv_create_comp_channel)
NEVER_CALLED(ibv_create_cq)
NEVER_CALLED(ibv_create_qp)
NEVER_CALLED(ibv_dealloc_pd)
NEVER_CALLED(ibv_dereg_mr)
NEVER_CALLED(ibv_destroy_comp_channel)
NEVER_CALLED(ibv_destroy_cq)
NEVER_CALLED(ibv_destroy_qp)
NEVER_CALLED(ibv_event_type_str)
NEVER_CALLED(ibv_get_async_event)
NEVER_CALLED(ibv_get_cq_event)
NEVER_CALLED(ibv_get_device_name)
NEVER_CALLED(ibv_modify_qp)
NEVER_CALLED(ibv_open_device)
NEVER_CALLED(ibv_query_device)
NEVER_CALLED(ibv_query_gid)
NEVER_CALLED(ibv_query_port)
NEVER_CALLED(ibv_query_qp)
NEVER_CALLED(ibv_reg_mr)
NEVER_CALLED(ibv_reg_mr_iova2)
NEVER_CALLED(ibv_wc_status_str)
