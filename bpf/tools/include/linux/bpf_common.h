/* SPDX-License-Identifier: GPL-2.0-only */
/* Included by BCC; nothing of it is used. */
