// `fixed_table_sum`: weight * x + bias with the weights that its tables were made from, cast; through
// a pipeline that its sink may hold at any time.
`default_nettype none

module prove_fixed_table_sum #(
    parameter int IN = 2,
    parameter int OUT = 2,
    parameter int X_WIDTH = 2,
    parameter bit X_SIGNED = 1'b1,
    parameter int W_WIDTH = 4,
    parameter int ACC_WIDTH = 8,
    parameter int ACC_FRAC = 2,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0,
    parameter bit IS_HALF_ADDED = 1'b0,
    parameter int STAGES = 0,
    parameter int TABLES = 2,
    parameter int COLUMNS = 2,
    parameter logic [TABLES*192-1:0] NETWORK = '0,
    parameter logic [COLUMNS*64-1:0] CONTENTS = '0,
    parameter logic [OUT*IN*W_WIDTH-1:0] WEIGHT = '0,
    parameter logic [OUT*W_WIDTH-1:0] BIAS = '0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN*X_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [OUT*OUT_WIDTH-1:0] data_out_0, due;
  logic [IN*X_WIDTH-1:0] head;

  fixed_table_sum #(
      .DATA_IN_0_PRECISION_0       (X_WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (IN),
      .DATA_OUT_0_PRECISION_0      (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1      (OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED        (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING         (ROUNDING),
      .DATA_OUT_0_OVERFLOW         (OVERFLOW),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(OUT),
      .ACC_WIDTH                   (ACC_WIDTH),
      .ACC_FRAC                    (ACC_FRAC),
      .IS_HALF_ADDED               (IS_HALF_ADDED),
      .STAGES                      (STAGES),
      .TABLES                      (TABLES),
      .COLUMNS                     (COLUMNS),
      .NETWORK                     (NETWORK),
      .CONTENTS                    (CONTENTS)
  ) dut (
      .*
  );

  spec_product #(
      .IN(IN), .OUT(OUT), .X_WIDTH(X_WIDTH), .X_SIGNED(X_SIGNED), .W_WIDTH(W_WIDTH),
      .WEIGHT(WEIGHT), .BIAS(BIAS), .FRAC(ACC_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC),
      .OUT_SIGNED(OUT_SIGNED), .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
  ) u_spec (
      .x(head),
      .y(due)
  );

  stream_laws #(.WIDTH(IN * X_WIDTH), .BEAT(OUT * OUT_WIDTH), .SLOTS(STAGES + 3), .LATENCY(STAGES + 1), .GAP(STAGES + 2)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready),
      .expected (data_in_0),
      .head     (head),
      .due      (due),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
