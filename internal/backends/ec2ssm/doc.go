// Package ec2ssm runs code on machines that somebody else owns: EC2 instances and hybrid machines that AWS Systems Manager
// reaches. It attaches only; there is no call in it that starts, stops, changes or ends a machine.
//
// A run is one SendCommand of a shell document. What it carries (code, environment, standard input) goes as base64 with a
// digest, so that no content can end it early; what is larger than one command goes ahead in pieces. On the machine a small
// shell script (script.go) takes it apart, starts the program in a session of its own under the wanted user, ends it when
// its time is over together with everything that carries the run's mark, and prints a report: exit status, sizes, and both
// streams as base64. Output beyond what SSM keeps is brought back through S3 or by further commands; what is left behind
// after that is counted and told.
//
// Wire facts stand where they are used; their source is the API reference of Systems Manager (SendCommand,
// GetCommandInvocation, CancelCommand, DescribeInstanceInformation) and of STS (AssumeRole, GetCallerIdentity), and the
// page on command statuses of the Systems Manager user guide.
package ec2ssm
