/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs, as far as captures make them: a list of work that runs in the order in which it
 * was captured. Addresses are looked up anew each time it runs.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct CUgraphExec_st {
	struct CUgraphExec_st *next;
	struct op *ops;
	size_t count;
};

static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;

bool graph_is_known_locked(CUgraph graph)
{
	for (const struct CUgraph_st *g = graphs; g; g = g->next)
		if (g == graph)
			return true;
	return false;
}

CUresult graph_create_locked(CUgraph *graph)
{
	struct CUgraph_st *made = calloc(1, sizeof *made);

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->next = graphs;
	graphs = made;
	*graph = made;
	return CUDA_SUCCESS;
}

CUresult graph_append_locked(CUgraph graph, const struct op *op)
{
	struct CUgraphNode_st *node;

	if (graph->count == graph->room) {
		size_t room = graph->room ? 2 * graph->room : 16;
		void *nodes = realloc(graph->nodes, room * sizeof *graph->nodes);

		if (!nodes)
			return CUDA_ERROR_OUT_OF_MEMORY;
		graph->nodes = nodes;
		graph->room = room;
	}
	node = malloc(sizeof *node);
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->op = *op;
	graph->nodes[graph->count++] = node;
	return CUDA_SUCCESS;
}

void graph_destroy_locked(CUgraph graph)
{
	struct CUgraph_st **at = &graphs;

	while (*at != graph)
		at = &(*at)->next;
	*at = graph->next;
	for (size_t i = 0; i < graph->count; i++)
		free(graph->nodes[i]);
	free(graph->nodes);
	free(graph);
}

static CUresult create(CUgraph *graph)
{
	CUresult err;

	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = graph_create_locked(graph);
	fake_unlock();
	return err;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : create(graph), "%#x", flags);
}

static CUresult destroy(CUgraph graph)
{
	bool found;

	fake_lock();
	found = graph_is_known_locked(graph);
	if (found)
		graph_destroy_locked(graph);
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : destroy(graph), "%p", (void *)graph);
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	bool found;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	found = graph_is_known_locked(graph);
	if (found) {
		for (size_t i = 0; nodes && i < *count; i++)
			nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
		if (!nodes || *count > graph->count)
			*count = graph->count;
	}
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : get_nodes(graph, nodes, count), "%p",
		(void *)graph);
}

static CUresult instantiate_locked(CUgraphExec *made, CUgraph graph)
{
	struct CUgraphExec_st *exec;

	if (!graph_is_known_locked(graph))
		return CUDA_ERROR_INVALID_VALUE;
	exec = calloc(1, sizeof *exec);
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->ops = calloc(graph->count + 1, sizeof *exec->ops);
	if (!exec->ops) {
		free(exec);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (size_t i = 0; i < graph->count; i++)
		exec->ops[i] = graph->nodes[i]->op;
	exec->count = graph->count;
	exec->next = execs;
	execs = exec;
	*made = exec;
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *made, CUgraph graph)
{
	CUresult err;

	if (!made)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = instantiate_locked(made, graph);
	fake_unlock();
	return err;
}

API CUresult cuGraphInstantiateWithFlags(
	CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : instantiate(exec, graph), "%p, %#llx",
		(void *)graph, flags);
}

API CUresult cuGraphInstantiate_v2(
	CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	if (error_node)
		*error_node = NULL;
	if (log && size)
		*log = 0;
	return done(__func__, err ? err : instantiate(exec, graph), "%p", (void *)graph);
}

API CUresult cuGraphInstantiate(
	CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	return cuGraphInstantiate_v2(exec, graph, error_node, log, size);
}

static struct CUgraphExec_st **find_exec_locked(CUgraphExec exec)
{
	struct CUgraphExec_st **at = &execs;

	while (*at && *at != exec)
		at = &(*at)->next;
	return at;
}

/* Runs that are queued have their own copies of the work. */
static CUresult destroy_exec(CUgraphExec exec)
{
	struct CUgraphExec_st **at;
	bool found;

	fake_lock();
	at = find_exec_locked(exec);
	found = *at;
	if (found) {
		*at = exec->next;
		free(exec->ops);
		free(exec);
	}
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : destroy_exec(exec), "%p", (void *)exec);
}

static CUresult launch_locked(CUgraphExec exec, CUstream handle)
{
	struct CUstream_st *stream;
	CUresult err = stream_resolve_locked(handle, &stream);

	if (err == CUDA_SUCCESS && !*find_exec_locked(exec))
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS && stream->is_legacy)
		err = capture_allow_legacy_locked(stream->ctx);
	for (size_t i = 0; err == CUDA_SUCCESS && i < exec->count; i++)
		err = stream->capture
			      ? capture_add_locked(stream, &exec->ops[i])
			      : stream_queue_locked(stream, &exec->ops[i], NULL, 0);
	return err;
}

static CUresult launch(CUgraphExec exec, CUstream stream)
{
	CUresult err;

	fake_lock();
	err = launch_locked(exec, stream);
	fake_unlock();
	return err;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : launch(exec, stream), "%p, %p", (void *)exec,
		(void *)stream);
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphLaunch(exec, per_thread(stream));
}

static CUresult check_exec(CUgraphExec exec)
{
	bool found;

	fake_lock();
	found = *find_exec_locked(exec);
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : check_exec(exec), "%p, %p", (void *)exec,
		(void *)stream);
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphUpload(exec, per_thread(stream));
}
