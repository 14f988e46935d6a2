/* SPDX-License-Identifier: GPL-2.0-only */
/* BCC asks for features by version; ours use none that came after the oldest kernel we support. */
#define KERNEL_VERSION(major, minor, patch) (((major) << 16) + ((minor) << 8) + (patch))
#define LINUX_VERSION_CODE		    KERNEL_VERSION(6, 1, 0)
