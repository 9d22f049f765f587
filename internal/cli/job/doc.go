// Package job has the commands of jobs: phases of commands in a sandbox, for evaluations.
package job
