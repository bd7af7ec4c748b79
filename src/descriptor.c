/* SPDX-License-Identifier: Apache-2.0 */
#include "descriptor.h"

#include <sys/stat.h>
#include <unistd.h>

ino_t descriptor_inode(int fd)
{
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 ? st.st_ino : 0;
}

bool descriptor_is(int fd, ino_t inode)
{
	return inode != 0 && descriptor_inode(fd) == inode;
}

void descriptor_close(int fd, ino_t inode)
{
	if (descriptor_is(fd, inode))
		close(fd);
}
