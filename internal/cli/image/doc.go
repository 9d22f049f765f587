// Package image has the commands of images, and shows the progress of pulls.
package image
