/* SPDX-License-Identifier: Apache-2.0 */
/* host PLUGIN [deepbind] - opens a plugin that is linked to a runtime, as a program without
 * CUDA does that has its plugins from elsewhere: RTLD_LOCAL. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int flags = RTLD_NOW | RTLD_LOCAL | (argc > 2 ? RTLD_DEEPBIND : 0);
	void *plugin = argc > 1 ? dlopen(argv[1], flags) : NULL;
	const char *(*take_route)(void);

	if (!plugin) {
		printf("FAILED: %s\n", dlerror());
		return 1;
	}
	*(void **)&take_route = dlsym(plugin, "plugin_take_route");
	puts(take_route());
	return 0;
}
